"""A malformed HEAD request is answered without a body, as any HEAD."""

import itertools
from pathlib import Path

from support.http import Wire
from support.server import ServerProcess


def test_no_body_follows_the_answer_to_a_head_request(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        rests = (b" x HTTP/1.1\r\nHost: localhost", b" / HTTP/1.1", b"  / HTTP/1.1\r\nHost: localhost")
        for (method, has_body), rest in itertools.product(((b"HEAD", False), (b"GET", True)), rests):
            with Wire(server.http_port) as wire:
                wire.send(method + rest + b"\r\n\r\n")
                head, _, body = wire.socket.makefile("rb").read().partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 400 ")
            assert b"content-length: " in head
            assert body.startswith(b'{"error":') is has_body
            assert has_body or not body


def test_a_malformed_method_behind_a_head_request_gets_its_body(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server, Wire(server.http_port) as wire:
        wire.send(b"HEAD /v0/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        first = wire.reply(head=True)
        assert first is not None
        assert first.status == 200
        wire.send(b"BR(W /v0/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        second = wire.reply()
        assert second is not None
        assert (second.status, second.body[:9]) == (400, b'{"error":')


def test_a_head_request_with_an_oversized_head_gets_no_body(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        for method, has_body in ((b"HEAD", False), (b"GET", True)):
            with Wire(server.http_port) as wire:
                wire.send(
                    method + b" /v0/health HTTP/1.1\r\nHost: localhost\r\nX-Huge: " + b"y" * 200_000 + b"\r\n\r\n"
                )
                head, _, body = wire.socket.makefile("rb").read().partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 431 ")
            assert body.startswith(b'{"error":') is has_body
            assert has_body or not body
