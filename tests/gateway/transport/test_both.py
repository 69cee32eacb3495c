"""Guarantees to applications and clients with either version of HTTP."""

import asyncio
import json
from typing import Any

import httpx
import pytest

MIB = 1 << 20

pytestmark = pytest.mark.parametrize("version", ["1.1", "2"])


def test_scope(run: Any, serve: Any, version: str) -> None:
    async def main() -> None:
        async with serve() as service, service.client(version) as client:
            response = await client.get("/a%2Fb/%C3%A9?x=%20&y", headers={"X-Two": "2"})
            assert response.http_version == f"HTTP/{version}"
            scope = response.json()
            host, port = "127.0.0.1", service.port
            assert scope["type"] == "http"
            assert scope["http_version"] == version
            assert scope["scheme"] == "http"
            assert scope["path"] == "/a/b/é"
            assert scope["raw_path"] == "/a%2Fb/%C3%A9"
            assert scope["query_string"] == "x=%20&y"
            assert scope["server"] == [host, port]
            assert scope["client"][0] == host
            assert ["x-two", "2"] in scope["headers"]
            assert ["host", f"{host}:{port}"] in scope["headers"]
            assert all(name == name.lower() and not name.startswith(":") for name, _ in scope["headers"])
            assert response.headers["date"].endswith("GMT")

    run(main())


def test_bodies_larger_than_the_windows(run: Any, serve: Any, version: str) -> None:
    async def main() -> None:
        async with serve(stream_window=65535, connection_window=65535) as service, service.client(version) as client:
            body = bytes(range(256)) * (5 * MIB // 256)
            assert (await client.post("/echo", content=body)).content == body
            # Whole body up first: httpx does not read a response while it sends.
            async with client.stream("GET", "/big?80") as response:
                assert sum([len(part) async for part in response.aiter_raw()]) == 80 * 65536

    run(main())


def test_many_at_once(run: Any, serve: Any, version: str) -> None:
    async def main() -> None:
        async with serve() as service, service.client(version) as client:
            count = 100  # httpcore opens no more streams
            holding = [asyncio.create_task(client.post("/hold", content=b"x")) for _ in range(count)]
            for _ in holding:
                await service.app.started.acquire()
            assert service.app.peak == count
            service.app.release.set()
            assert {response.status_code for response in await asyncio.gather(*holding)} == {200}
            bodies = [str(number).encode() * 5000 for number in range(50)]
            responses = await asyncio.gather(*(client.post("/echo", content=body) for body in bodies))
            assert [response.content for response in responses] == bodies

    run(main())


def test_head_and_no_content(run: Any, serve: Any, version: str) -> None:
    async def main() -> None:
        async with serve() as service, service.client(version) as client:
            head = await client.head("/scope")
            assert head.content == b""
            assert int(head.headers["content-length"]) > 100
            assert (await client.head("/stream")).content == b""
            nothing = await client.get("/nothing")
            assert (nothing.status_code, nothing.content) == (204, b"")
            assert (await client.get("/echo")).content == b""
            assert service.server.connections == 1

    run(main())


def test_an_application_may_set_its_own_headers(run: Any, serve: Any, version: str) -> None:
    async def main() -> None:
        async with serve() as service, service.client(version) as client:
            response = await client.get("/date")
            assert response.headers.get_list("date") == ["mine"]
            assert response.headers["x-case"] == "Kept"

    run(main())


def test_disconnect_reaches_a_long_poll(run: Any, serve: Any, version: str) -> None:
    async def main() -> None:
        async with serve() as service:
            async with service.client(version) as client:
                polling = asyncio.create_task(client.post("/wait", content=b"body"))
                await service.app.started.acquire()
                polling.cancel()
            # On HTTP/2 httpcore does not reset the stream of a cancelled request, so only now is the client gone.
            await service.app.disconnected.acquire()
            await service.idle()

    run(main())


def test_disconnect_follows_the_response(run: Any, serve: Any, version: str) -> None:
    async def main() -> None:
        async with serve() as service, service.client(version) as client:
            assert (await client.get("/after")).content == b"ok"

    run(main())


def test_disconnect_wakes_a_sender(run: Any, serve: Any, version: str) -> None:
    async def main() -> None:
        async with serve() as service:
            async with service.client(version) as client, client.stream("GET", "/big?1000") as response:
                assert response.status_code == 200
            await service.idle()

    run(main())


def test_exception_is_500_and_logged_once(run: Any, serve: Any, version: str, caplog: Any) -> None:
    async def main() -> None:
        async with serve() as service, service.client(version) as client:
            for path in ("/fail", "/silent"):
                response = await client.get(path)
                assert response.status_code == 500
                assert response.headers["content-type"] == "application/json"
                body = response.json()
                assert body["error"] == {"code": "internal", "message": "internal error"}
                assert body["performance"]["server_total_ms"] >= 0
            assert [(r.name, r.levelname) for r in caplog.records] == [("topics.http", "ERROR")] * 2
            assert [bool(r.exc_info) for r in caplog.records] == [True, False]
            caplog.clear()
            assert (await client.get("/")).status_code == 200

    run(main())


def test_exception_after_the_head_breaks_the_response(run: Any, serve: Any, version: str, caplog: Any) -> None:
    async def main() -> None:
        async with serve() as service, service.client(version) as client:
            with pytest.raises(httpx.RemoteProtocolError):
                await client.get("/fail-late")
            assert len(caplog.records) == 1
            caplog.clear()
            assert (await client.get("/")).status_code == 200

    run(main())


def test_early_answer_to_a_large_body(run: Any, serve: Any, version: str) -> None:
    async def main() -> None:
        async with serve() as service, service.client(version) as client:
            assert (await client.post("/early", content=b"small")).status_code == 413
            assert (await client.post("/early", content=b"x" * 200_000)).status_code == 413
            assert (await client.get("/")).status_code == 200

    run(main())


def test_stop_has_a_limit(run: Any, serve: Any, version: str, caplog: Any) -> None:
    async def main() -> None:
        async with serve() as service, service.client(version) as client:
            running = [asyncio.create_task(client.get(path)) for path in ("/hold", "/half")]
            for _ in running:
                await service.app.started.acquire()
            await asyncio.gather(service.server.stop(0.05), service.server.stop(5))
            for _ in running:
                await service.app.cancelled.acquire()
            results = await asyncio.gather(*running, return_exceptions=True)
            assert [isinstance(result, httpx.HTTPError) for result in results] == [True, True]
            assert ["unfinished" in record.getMessage() for record in caplog.records] == [True]
            caplog.clear()

    run(main())


def test_a_cancelled_stop_closes_at_once(run: Any, serve: Any, version: str) -> None:
    async def main() -> None:
        async with serve() as service, service.client(version) as client:
            running = asyncio.create_task(client.get("/hold"))
            await service.app.started.acquire()
            stopping = asyncio.create_task(service.server.stop(20))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            stopping.cancel()
            await service.app.cancelled.acquire()
            await service.idle()
            assert isinstance((await asyncio.gather(running, return_exceptions=True))[0], httpx.HTTPError)
            with pytest.raises(asyncio.CancelledError):
                await stopping
            await service.server.stop()

    run(main())


def test_path_that_is_no_utf8(run: Any, serve: Any, version: str) -> None:
    """Raw paths that are no UTF-8 still reach the application."""

    async def main() -> None:
        async with serve() as service, service.client(version) as client:
            assert json.loads((await client.get("/%ff%FE")).content)["raw_path"] == "/%ff%FE"

    run(main())
