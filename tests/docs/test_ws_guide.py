"""The WebSocket client of docs/watch.md, run as it is printed."""

import asyncio
import re
from pathlib import Path
from typing import Any

from support.http import Api
from support.server import ServerProcess

PAGE = Path(__file__).parents[2] / "docs" / "watch.md"


async def test_it_follows_over_a_restart(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(# follow\.py.*?)```", PAGE.read_text(), re.DOTALL)
    page: dict[str, Any] = {}
    exec(compile(block, "follow.py", "exec"), page)
    with ServerProcess(tmp_path, same_ports=True) as server:
        frames: list[dict[str, Any]] = []
        cursors: dict[str, int] = {}

        def datas() -> list[Any]:
            return [record["data"] for frame in frames if frame["op"] == "record" for record in frame["records"]]

        with Api(server.base) as api:
            for name in ("a", "b"):
                cursors[api.make(name)] = 0
            a, b = cursors
            api.append(a, 1), api.append(b, 2)
            url = server.base.replace("http", "ws") + "/v0/ws"
            following = asyncio.create_task(page["follow"](url, cursors, frames.append))
            await _until(lambda: sorted(datas()) == [1, 2] and list(cursors.values()) == [1, 1])
        assert await asyncio.to_thread(server.stop) == 0
        await _until(lambda: frames[-1].get("code") == "server_shutting_down")
        await asyncio.to_thread(server.start)
        with Api(server.base) as api:
            api.append(a, 3)
            await _until(lambda: sorted(datas()) == [1, 2, 3])
        following.cancel()
        await asyncio.wait([following])


async def _until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)
