"""The site that is built from docs/: complete, without a dead link, without anything from elsewhere."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import pytest
from google.api import annotations_pb2
from markdown_it import MarkdownIt

import topics_cli as cli
import topics_client
from support.guide import run_guide, with_addresses
from support.missing import without
from support.server import ServerProcess
from topics_proto.v1 import (
    admin_service_pb2,
    errors_pb2,
    group_service_pb2,
    queue_service_pb2,
    router_service_pb2,
    sql_service_pb2,
    topics_service_pb2,
    watch_service_pb2,
)

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GENERATED = ROOT / "sdk/generated"
NODE_PACKAGES = ROOT / "tests/sdk/languages/node/node_modules"
SERVICES = {
    "topics": topics_service_pb2,
    "watch": watch_service_pb2,
    "queues": queue_service_pb2,
    "routers": router_service_pb2,
    "groups": group_service_pb2,
    "sql": sql_service_pb2,
    "admin": admin_service_pb2,
}
LOADED = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "link": "href",
}
COUNTED = {"ul", "ol", "li", "table", "tr", "pre", "h2", "h3"}


def _build(target: Path, config: Path = ROOT / "mkdocs.yml", **variables: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--config-file",
        str(config),
        "--site-dir",
        str(target),
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    environment |= {"NO_MKDOCS_2_WARNING": "1", **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110, check=False)


class Element(NamedTuple):
    tag: str
    attributes: dict[str, str | None]


class Page(HTMLParser):
    """The elements of a page, and how many of each kind its text has."""

    def __init__(self, html: str, *, whole: bool = False) -> None:
        super().__init__()
        self.elements: list[Element] = []
        self.counts: dict[str, int] = {}
        self._inside = whole
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, dict(attributes)))
        self._inside = self._inside or tag == "article"
        if self._inside and tag in COUNTED:
            self.counts[tag] = self.counts.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        if tag == "article":
            self._inside = False

    @property
    def anchors(self) -> set[str]:
        return {value for _, attributes in self.elements for name in ("id", "name") if (value := attributes.get(name))}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    done = _build(target)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return target


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text()) for path in sorted(site.rglob("*.html"))}


def test_every_page_of_docs_is_in_the_navigation(pages: dict[Path, Page], site: Path) -> None:
    home = site / "index.html"
    linked = {attributes.get("href") for tag, attributes in pages[home].elements if tag == "a"}
    written = {page.relative_to(DOCS).with_suffix(".html").as_posix() for page in DOCS.rglob("*.md")}
    assert "comparison.html" in written
    assert written - {"index.html"} <= linked


def test_every_link_leads_to_a_page_and_an_anchor(pages: dict[Path, Page]) -> None:
    anchors = {path: page.anchors for path, page in pages.items()}
    dead, checked = [], 0
    for path, page in pages.items():
        if path.name == "404.html":  # its links begin at the root of a server
            continue
        for tag, attributes in page.elements:
            target = urlsplit(attributes.get("href") or "") if tag == "a" else None
            if target is None or target.scheme or target.netloc or not (target.path or target.fragment):
                continue
            checked += 1
            file = (path.parent / unquote(target.path)).resolve() if target.path else path
            fragment = unquote(target.fragment)
            if not file.is_file() or (fragment and file in anchors and fragment not in {*anchors[file], "__skip"}):
                dead.append(f"{path.name}: {attributes['href']}")
    assert checked > 1000
    assert not dead


def test_nothing_is_loaded_from_elsewhere(pages: dict[Path, Page], site: Path) -> None:
    loaded = [
        address
        for page in pages.values()
        for tag, attributes in page.elements
        if (address := attributes.get(LOADED.get(tag, "")))
        and attributes.get("rel") not in ("canonical", "next", "prev")
    ]
    for style in site.rglob("*.css"):
        loaded += re.findall(r"(?:url\(|@import )['\"]?([^'\")\s]+)", style.read_text())
    assert any(address.endswith("site.css") for address in loaded)
    assert not [address for address in loaded if urlsplit(address).netloc]


@pytest.mark.parametrize("page", sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")))
def test_a_page_has_the_same_shape_as_on_a_code_host(page: str, pages: dict[Path, Page], site: Path) -> None:
    """Python-Markdown wants blank lines and indents where others don't: what it takes for a paragraph is no list."""
    there = MarkdownIt("commonmark", {"html": True}).enable("table").render((DOCS / page).read_text())
    assert pages[(site / page).with_suffix(".html")].counts == Page(there, whole=True).counts


def test_every_call_is_in_the_reference(pages: dict[Path, Page], site: Path) -> None:
    overview = (site / "reference/api/index.html").read_text()
    calls = 0
    for name, file in SERVICES.items():
        path = site / f"reference/api/{name}.html"
        text = path.read_text()
        for service in file.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                calls += 1
                assert {method.name.lower(), method.input_type.name.lower()} <= pages[path].anchors
                assert f'href="{name}.html#{method.name.lower()}"' in overview
                rule = method.GetOptions().Extensions[annotations_pb2.http]
                for binding in (rule, *rule.additional_bindings):
                    if verb := binding.WhichOneof("pattern"):
                        assert f"<code>{verb.upper()} {getattr(binding, verb)}</code>" in text
    assert calls > 30


def test_every_field_is_in_the_reference_with_its_comment(site: Path) -> None:
    text = (site / "reference/api/topics.html").read_text()
    for field in topics_service_pb2.AppendRequest.DESCRIPTOR.fields:
        assert f"<code>{field.name}</code>" in text
    assert "Makes a retry safe: a second append with the same key" in text
    assert 'optional <a href="#durability">Durability</a>' in text
    assert 'repeated <a href="records.html#appendrecord">AppendRecord</a>' in text
    assert 'map of string to <a href="#watchtopic">WatchTopic</a>' in (site / "reference/api/watch.html").read_text()


def test_every_error_reason_is_in_the_reference(pages: dict[Path, Page], site: Path) -> None:
    path = site / "reference/api/errors.html"
    text = path.read_text()
    for value in errors_pb2.ErrorReason.DESCRIPTOR.values[1:]:
        rule = value.GetOptions().Extensions[errors_pb2.rule]
        assert rule.code in pages[path].anchors
        assert re.search(
            rf'id="{rule.code}".*?HTTP {rule.http_status}, gRPC <code>{rule.grpc_status}</code>', text, re.S
        )


def test_every_command_is_in_the_reference_with_its_arguments(pages: dict[Path, Page], site: Path) -> None:
    path = site / "reference/cli.html"
    text = path.read_text()
    for name in cli.COMMANDS:
        assert f"topics-{name}" in pages[path].anchors
        for action in cli.parser(name)._actions:
            for option in action.option_strings:
                assert option in text


def _public_names() -> Iterator[str]:
    for name in dir(topics_client):
        yield f"topics_client.{name}"
    for client in (topics_client.TopicsClient, topics_client.AsyncTopicsClient):
        yield from (f"topics_client.{client.__name__}.{call}" for call in dir(client) if not call.startswith("_"))


def test_every_public_name_of_the_sdk_is_in_the_reference(pages: dict[Path, Page], site: Path) -> None:
    anchors = set[str]().union(*(page.anchors for path, page in pages.items() if path.parent.name == "python"))
    names = set(_public_names())
    assert "topics_client.TopicsClient.append" in names
    assert not names - anchors


def test_links_out_of_docs_are_text_or_pages_of_the_site(site: Path) -> None:
    assert '<span title="service/deploy">service/deploy</span>' in (site / "deployment.html").read_text()
    assert '<a href="index.html">write</a>' in (site / "watch.html").read_text()  # the README
    assert '<a href="reference/api/index.html">proto/topics/v1</a>' in (site / "grpc.html").read_text()


def test_mistakes_in_a_page_fail_the_build(tmp_path: Path) -> None:
    """And, in passing, where links out of docs/ lead when a code host is named."""
    for name in ("CHANGELOG.md", "docs_site", "proto", "sdk"):
        (tmp_path / name).symlink_to(ROOT / name)
    config = re.sub(r"^nav:\n(?: .*\n)+", "nav: [index.md, bad.md]\n", (ROOT / "mkdocs.yml").read_text(), flags=re.M)
    (tmp_path / "mkdocs.yml").write_text(config)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text("# Home\n\n[Protos](../proto)\n")
    (tmp_path / "docs/left_out.md").write_text("# Left out\n")
    (tmp_path / "docs/bad.md").write_text(
        "# Bad\n\n[a](../nowhere.py) [b](nowhere.md) [c](index.md#nowhere)\n\n<!-- tabs: Go, Rust -->\n```go\nx\n```\n"
    )
    source = "https://code.test/blob/main"
    done = _build(tmp_path / "site", tmp_path / "mkdocs.yml", TOPICS_DOCS_SOURCE=f"{source}/")
    assert done.returncode != 0
    for complaint in (
        "bad.md links to nowhere.py, which does not exist",
        "contains a link 'nowhere.md', but the target is not found",
        "contains a link 'index.md#nowhere', but the doc 'index.md' does not contain an anchor '#nowhere'",
        "bad.md: no code block for the tab 'Rust'",
        "  - left_out.md",
    ):
        assert complaint in done.stderr
    assert f'<a href="{source}/proto">Protos</a>' in (tmp_path / "site/index.html").read_text()


def test_the_home_page_works_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ServerProcess(tmp_path) as server:
        monkeypatch.setenv("TOPICS_URL", f"topics://{server.grpc_target}")
        run_guide(DOCS / "index.md", server, least_blocks=2)


def _printed_by_home_page(kind: str, file: Path, server: ServerProcess, *command: str) -> str:
    """What the block of a kind prints."""
    [block] = re.findall(rf"```{kind}\n(.*?)```", (DOCS / "index.md").read_text(), re.DOTALL)
    file.write_text(with_addresses(block, server))
    return subprocess.check_output(command, cwd=file.parent, text=True, timeout=200)


@pytest.mark.timeout(300)  # the first build of grpc
def test_the_home_page_works_as_written_in_go(tmp_path: Path) -> None:
    if shutil.which("go") is None:
        without("go is not installed")
    module = f"module home\n\nrequire topics.test/sdk v0.0.0\n\nreplace topics.test/sdk => {GENERATED}/go\n"
    (tmp_path / "go.mod").write_text(module + (GENERATED / "go/go.mod").read_text().partition("\n")[2])
    shutil.copy(GENERATED / "go/go.sum", tmp_path)
    with ServerProcess(tmp_path / "server") as server:
        printed = _printed_by_home_page("go", tmp_path / "main.go", server, "go", "run", ".")
    assert printed == '1 {"id":1,"total":9.5}\n2 {"id":2}\n'


def test_the_home_page_works_as_written_in_typescript(tmp_path: Path) -> None:
    if not NODE_PACKAGES.exists():
        without("the packages for Node are not installed: make test-sdk does it")
    (tmp_path / "node_modules").symlink_to(NODE_PACKAGES)
    with ServerProcess(tmp_path / "server") as server:
        printed = _printed_by_home_page("typescript", tmp_path / "home.mjs", server, "node", "home.mjs")
    assert printed == "1 eu { id: 1, total: 9.5 }\n"
