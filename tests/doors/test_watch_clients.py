"""The code in docs/watch.md, run by real clients: Node's `eventsource` package and the EventSource of a browser.

They follow a topic over a restart of the server. What is not installed is skipped, with the reason; CI has everything:
`apt-get install nodejs npm chromium` and `npm ci --prefix tests/clients`.
"""

import itertools
import json
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Self

import pytest
from websockets.sync.client import ClientConnection, connect

from support.http import Api
from support.server import ServerProcess
from support.waiting import poll

ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / "tests/clients"
PACKAGE = CLIENTS / "node_modules/eventsource"
NODE = shutil.which("node")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SECONDS = 25.0

Told = list[list[Any]]


def follow_code() -> str:
    """The page's module."""
    blocks: list[str] = re.findall(r"```js\n(.*?)```", (ROOT / "docs/watch.md").read_text(), re.DOTALL)
    [code] = [block for block in blocks if block.startswith("// follow.mjs")]
    return code


@pytest.fixture
def restartable(start: Callable[..., ServerProcess]) -> ServerProcess:
    """A server that comes back on the same port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return start(TOPICS_PORT=port)


def follow_over_a_restart(server: ServerProcess, told: Callable[[], Told], topic: str, *, kill: bool) -> None:
    """Write, restart, write: the client is told every record once, in order, and what happened in between."""
    poll(lambda: "caught-up" in events(told()), SECONDS)
    with Api(server.base) as api:
        api.append(topic, "live")
        poll(lambda: datas(told()) == ["before", "live"], SECONDS)
    if kill:
        server.kill()
    else:
        assert server.stop() == 0
    server.start()
    with Api(server.base) as api:
        api.append(topic, "after")
        poll(lambda: len(datas(told())) > 2, SECONDS, what="the record after the restart")
        api.append(topic, "end")
        poll(lambda: len(datas(told())) > 3, SECONDS)
    assert datas(told()) == ["before", "live", "after", "end"]
    errors = [data["code"] for event, data in told() if event == "error"]
    assert errors == ([] if kill else [503])


def events(told: Told) -> list[str]:
    return [event for event, _ in told]


def datas(told: Told) -> list[Any]:
    return [record["data"] for event, data in told if event == "record" for record in data["records"]]


# ------------------------------------------------------------------------------ Node


@pytest.mark.skipif(NODE is None, reason="node is not installed")
@pytest.mark.skipif(not PACKAGE.exists(), reason="no tests/clients/node_modules: npm ci --prefix tests/clients")
@pytest.mark.parametrize("kill", [False, True], ids=["SIGTERM", "SIGKILL"])
def test_node_follows_over_a_restart(tmp_path: Path, restartable: ServerProcess, kill: bool) -> None:
    code = tmp_path / "follow.mjs"
    code.write_text(follow_code())
    with Api(restartable.base) as api:
        topic = api.make()
        api.append(topic, "before")
    command = [str(NODE), str(CLIENTS / "follow_node.mjs"), str(code), restartable.base, topic]
    with Lines(command) as lines:
        follow_over_a_restart(restartable, lambda: [json.loads(line) for line in lines.seen()], topic, kill=kill)


class Lines:
    """A process, and the lines that it has printed."""

    def __init__(self, command: list[str], *, stderr: bool = False) -> None:
        stdout, errors = (subprocess.DEVNULL, subprocess.PIPE) if stderr else (subprocess.PIPE, None)
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=errors, text=True)
        self._lines: list[str] = []
        pipe = self.process.stderr if stderr else self.process.stdout
        assert pipe is not None
        self._reader = threading.Thread(target=self._read, args=(pipe,))
        self._reader.start()

    def seen(self) -> list[str]:
        return list(self._lines)

    def _read(self, pipe: IO[str]) -> None:
        with pipe:
            self._lines.extend(pipe)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(10)
        self._reader.join(10)


# --------------------------------------------------------------------------- browser


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_a_browser_follows_over_a_restart(tmp_path: Path, restartable: ServerProcess) -> None:
    with Api(restartable.base) as api:
        topic = api.make()
        api.append(topic, "before")
    with open_page(tmp_path, f"{restartable.base}/v0/health") as page:
        script = follow_code().replace("export function", "function")
        page.run(
            f"{script}; globalThis.told = [];"
            f"follow({{ topics: {{ {json.dumps(topic)}: {{}} }}, seen: (event, data) => told.push([event, data]) }}); 0"
        )
        follow_over_a_restart(restartable, lambda: page.run("globalThis.told"), topic, kill=False)


class Page:
    """A page of a headless browser, by the DevTools protocol."""

    def __init__(self, connection: ClientConnection, url: str) -> None:
        self._connection = connection
        self._ids = itertools.count(1)
        self._session = ""
        target = self._call("Target.createTarget", url=url)["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        poll(lambda: self.run("document.readyState === 'complete' && location.href") == url, SECONDS)

    def run(self, script: str) -> Any:
        """The value of a script."""
        result = self._call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._ids)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._connection.send(json.dumps(message))
        while True:
            reply = json.loads(self._connection.recv(SECONDS))
            if reply.get("id") == number:
                return dict(reply["result"])


@contextmanager
def open_page(directory: Path, url: str) -> Iterator[Page]:
    """A browser of our own with one page."""
    assert CHROMIUM is not None
    command = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--remote-debugging-port=0", f"--user-data-dir={directory}/profile", "about:blank",
    ]  # fmt: skip
    with Lines(command, stderr=True) as browser:

        def endpoint() -> str:
            found = re.search(r"DevTools listening on (ws://\S+)", "".join(browser.seen()))
            return found[1] if found else ""

        with connect(poll(endpoint, SECONDS, "the browser"), proxy=None, max_size=None) as connection:
            yield Page(connection, url)
