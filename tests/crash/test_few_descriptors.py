"""Too few file descriptors: a clear refusal at the start; and a database that a flood of connections leaves its own."""

import socket
import time
from collections.abc import Callable

from support.http import Api, ok
from support.server import ServerProcess
from support.waiting import poll
from topics_server.descriptors import MIN_DESCRIPTORS

FLOOD = 200


def limited(number: int) -> list[str]:
    return ["prlimit", f"--nofile={number}:{number}"]


def test_too_few_to_start(make_server: Callable[..., ServerProcess]) -> None:
    server = make_server(prefix=limited(MIN_DESCRIPTORS - 1))
    server.spawn()
    assert server.wait(20) == 1
    [line] = server.log.strip().splitlines()
    assert (
        line
        == f"topics: the process may open {MIN_DESCRIPTORS - 1} files (ulimit -Hn), it needs at least {MIN_DESCRIPTORS}"
    )
    assert not server.data_dir.exists()


def test_a_flood_of_connections_leaves_the_database_its_files(make_server: Callable[..., ServerProcess]) -> None:
    server = make_server(prefix=limited(MIN_DESCRIPTORS), kafka=True, env={"TOPICS_MEMORY_BYTES": 8 << 20}).start()
    options = max(server.data_dir.glob("OPTIONS-*")).read_text()
    assert f"max_open_files={MIN_DESCRIPTORS // 4}" in options
    with Api(server.base) as api:
        ok(api.put("t", durability="fsync"), 201)
        held: list[socket.socket] = []
        for port in (server.http_port, int(server.grpc_target.rpartition(":")[2]), server.kafka_port):
            for _ in range(FLOOD):
                sock = socket.create_connection(("127.0.0.1", port), timeout=5)
                sock.sendall(b"P")  # for gRPC, which counts a connection once it says something
                held.append(sock)
        before, began = server.cpu_seconds(), time.monotonic()
        for i in range(200):  # more than the write buffer holds: tables and logs are made meanwhile
            assert api.append("t", f"{i}{'x' * 20_000}")["first_seq"] == i + 1
        while time.monotonic() < began + 1.5:
            time.sleep(0.05)
        busy = (server.cpu_seconds() - before) / (time.monotonic() - began)
        assert busy < 0.8, "who waits for a descriptor does not spin"
        assert ok(api.send("GET", "/v0/ready"))
        for sock in held:
            sock.close()

        def comes_in() -> bool:
            with Api(server.base) as fresh:
                return len(fresh.read_all("t")) == 200

        assert poll(comes_in, 20, "the listener accepts again")
    assert server.stop() == 0
    with make_server(data_dir=server.data_dir) as again, Api(again.base) as api:
        assert len(api.read_all("t")) == 200
