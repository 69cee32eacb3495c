"""The guides and the page about the Python SDK, run as they are printed, each against a fresh server."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import uvicorn

from support.guide import ROOT, Page
from support.server import ServerProcess
from topics_client import TopicConfig, TopicsClient

GUIDES = ROOT / "docs" / "guides"


@pytest.mark.parametrize(
    "page", ["python.md", "guides/events.md", "guides/pubsub.md", "guides/jobs.md", "guides/outbox.md"]
)
def test_a_page_runs_as_it_is_printed(tmp_path: Path, page: str) -> None:
    with ServerProcess(tmp_path / "server") as server:
        Page(tmp_path, server).run(ROOT / "docs" / page, least_blocks=7)


def test_the_application_of_the_guide_to_pubsub_serves_browsers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ServerProcess(tmp_path) as server:
        monkeypatch.setenv("TOPICS_URL", server.grpc_target)
        (source,) = re.findall(r"^```python\n(# chat\.py\n.*?)^```", (GUIDES / "pubsub.md").read_text(), re.M | re.S)
        chat: dict[str, Any] = {}
        exec(compile(source, "chat.py", "exec"), chat)
        with TopicsClient(server.grpc_target) as topics, served(chat["app"]) as base:
            with pytest.raises(urllib.error.HTTPError, match="404") as refused:
                post(f"{base}/rooms/lobby", {"text": "nobody there"})
            refused.value.close()

            topics.put_topic("chat:lobby")
            assert post(f"{base}/rooms/lobby", {"text": "before"}) == {"seq": 1}
            with urllib.request.urlopen(f"{base}/rooms/lobby", timeout=20) as page:
                post(f"{base}/rooms/lobby", {"text": "live"})
                assert [page.readline() for _ in range(3)] == [b"id: 2\n", b'data: {"text": "live"}\n', b"\n"]

            post(f"{base}/rooms/lobby", {"text": "last"})
            topics.put_topic("chat:lobby", TopicConfig(cap_records=1))
            again = urllib.request.Request(f"{base}/rooms/lobby", headers={"Last-Event-ID": "1"})
            with urllib.request.urlopen(again, timeout=20) as page:
                assert b"".join(page.readline() for _ in range(5)) == (
                    b'event: gap\ndata: 1\n\nid: 3\ndata: {"text": "last"}\n'
                )


def post(url: str, value: object) -> object:
    with urllib.request.urlopen(url, json.dumps(value).encode(), timeout=20) as reply:
        return json.load(reply)


@contextmanager
def served(app: Any) -> Iterator[str]:
    """The URL of an application that runs in a thread."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5))
    thread = Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()
    assert not thread.is_alive()


def test_the_guide_to_mirrors_runs_as_it_is_printed(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "a") as here, ServerProcess(tmp_path / "b") as there:
        page = Page(tmp_path, here, replace={"127.0.0.1:5001": there.grpc_target})
        try:
            page.run(GUIDES / "mirror.md", least_blocks=10)
        finally:
            with suppress(FileNotFoundError, ProcessLookupError):
                os.kill(int((tmp_path / "mirror.pid").read_text()), signal.SIGKILL)


@pytest.mark.parametrize("page", [ROOT / "docs" / "python.md", *GUIDES.glob("*.md")], ids=lambda page: page.name)
def test_links_lead_to_headings_and_files(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", page.read_text()):
        linked = (page.parent / target) if target else page
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", linked.read_text(), re.MULTILINE)
            plain = [re.sub(r"[^\w\- ]", "", heading).strip() for heading in headings]
            assert anchor in [heading.lower().replace(" ", "-") for heading in plain]


def test_what_they_show_is_typed_as_strictly_as_mypy_can(tmp_path: Path) -> None:
    pages = [ROOT / "docs" / "python.md", *GUIDES.glob("*.md")]
    for page in pages:
        blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
        (tmp_path / f"{page.stem}.py").write_text("\n\n".join(blocks))
    examples = [ROOT / "examples" / name for name in ("mirror.py", "projection.py", "worker.py")]
    for example in examples:
        (tmp_path / f"example_{example.name}").write_text(example.read_text())
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir=cache", "."],
        cwd=tmp_path,  # as a user: no configuration of ours
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"in {len(pages) + len(examples)} source files" in done.stdout
