"""The code in docs/watch.md, run by real clients: Node's `eventsource` package and the EventSource of a browser.

They follow a topic over a restart of the server. What is not installed is skipped, with the reason; CI has everything:
`apt-get install nodejs npm chromium` and `npm ci --prefix tests/clients`.
"""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.browser import CHROMIUM, SECONDS, Lines, open_page
from support.http import Api
from support.ports import free_port
from support.server import ServerProcess
from support.waiting import poll

ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / "tests/clients"
PACKAGE = CLIENTS / "node_modules/eventsource"
NODE = shutil.which("node")

Told = list[list[Any]]


def follow_code() -> str:
    """The page's module."""
    blocks: list[str] = re.findall(r"```js\n(.*?)```", (ROOT / "docs/watch.md").read_text(), re.DOTALL)
    [code] = [block for block in blocks if block.startswith("// follow.mjs")]
    return code


@pytest.fixture
def restartable(start: Callable[..., ServerProcess]) -> ServerProcess:
    """A server that comes back on the same port."""
    port = free_port()
    return start(TOPICS_PORT=port)


def follow_over_a_restart(server: ServerProcess, told: Callable[[], Told], topic: str, *, kill: bool) -> None:
    """Write, restart, write: the client gets every record once, in order, and the events in between."""
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
