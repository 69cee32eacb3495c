"""Links from the pages to files of the repository that are no part of the site.

On a code host they lead to the file. In the site they lead to `source_url` (`extra` in mkdocs.yml, TOPICS_DOCS_SOURCE:
what stands before a path at the code host, as in `https://HOST/OWNER/topics/blob/main`) or, if there is none, become
plain text with the path as its title. Some of them are pages of the site under another name. A link to a file that
does not exist is a warning, which `mkdocs build --strict` fails with.
"""

import logging
import os
import posixpath
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit
from xml.etree.ElementTree import Element

from markdown import Markdown
from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor
from mkdocs.structure.pages import Page

_log: Final = logging.getLogger("mkdocs.hooks.docs_site")


class OutsideLinks(Extension):
    """Goes to work on the page that `page` is set to."""

    def __init__(self, root: Path, docs: Path, shown_as: Mapping[str, str], *, source_url: str) -> None:
        super().__init__()
        self._root = root
        self._docs = docs
        self._shown_as = {root / name: docs / page for name, page in shown_as.items()}
        self._source_url = source_url.rstrip("/")
        self.page: Page | None = None

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - its name in Markdown
        md.treeprocessors.register(_Rewriter(self, md), "outside_links", 1)  # before MkDocs resolves links, at 0

    def rewrite(self, link: Element) -> None:
        """Turn a link into what it is in the site."""
        target = urlsplit(link.get("href", ""))
        if self.page is None or target.scheme or target.netloc or not target.path or target.path.startswith("/"):
            return
        shown = Path(self.page.file.abs_src_path or self._docs / self.page.file.src_uri)
        path = Path(os.path.normpath(shown.parent / unquote(target.path)))
        fragment = target.fragment
        if path in self._shown_as:
            path, fragment = self._shown_as[path], ""
        if path.is_relative_to(self._docs):
            here = posixpath.dirname(self.page.file.src_uri)
            uri = posixpath.relpath(path.relative_to(self._docs).as_posix(), here or ".")
            link.set("href", urlunsplit(("", "", uri, target.query, fragment)))
            return
        name = path.relative_to(self._root).as_posix() if path.is_relative_to(self._root) else str(path)
        if not path.exists():
            _log.warning("%s links to %s, which does not exist", self.page.file.src_uri, name)
        if self._source_url:
            link.set("href", f"{self._source_url}/{name}")
            return
        link.tag = "span"
        link.attrib.clear()
        link.set("title", name)


class _Rewriter(Treeprocessor):
    def __init__(self, links: OutsideLinks, md: Markdown) -> None:
        super().__init__(md)
        self._links = links

    def run(self, root: Element) -> Any:
        for link in list(root.iter("a")):
            self._links.rewrite(link)
