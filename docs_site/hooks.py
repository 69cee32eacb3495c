"""Additions of the site's build to the pages of docs/. MkDocs calls these functions by their names."""

import logging
from pathlib import Path
from typing import Final

from code_tabs import with_tabs
from command_pages import command_page
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from outside_links import OutsideLinks
from proto_pages import proto_pages
from python_pages import python_pages

ROOT: Final = Path(__file__).parents[1]
SHOWN_AS: Final = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "proto/topics/v1": "reference/api/index.md",
    "sdk/python/topics_client": "reference/python/client.md",
    "sdk/python/topics_cli": "reference/cli.md",
}
"""Paths outside docs/, and the page of the site that stands for each."""

_log: Final = logging.getLogger("mkdocs.hooks.docs_site")


def on_config(config: MkDocsConfig) -> None:
    links = OutsideLinks(ROOT, Path(config.docs_dir), SHOWN_AS, source_url=config.extra.get("source_url") or "")
    config.markdown_extensions.append(links)  # type: ignore[arg-type]  # Markdown takes objects as well as names
    config.extra["outside_links"] = links


def on_files(files: Files, config: MkDocsConfig) -> None:
    """The pages that are made from the protos, the SDK and the commands, and the changelog."""
    pages = {**proto_pages(ROOT / "proto"), **python_pages(), "reference/cli.md": command_page()}
    for uri, text in pages.items():
        files.append(File.generated(config, uri, content=text))
    files.append(File.generated(config, "changelog.md", abs_src_path=str(ROOT / "CHANGELOG.md")))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    config.extra["outside_links"].page = page
    if page.is_homepage:
        page.meta["hide"] = ["navigation", "toc"]
    if page.file.src_uri.startswith("reference/"):
        page.meta["search"] = {"boost": 0.5}  # who searches for a word wants the guide first
    try:
        return with_tabs(markdown)
    except ValueError as error:
        _log.warning("%s: %s", page.file.src_uri, error)
        return markdown
