"""A TCP proxy in front of a Kafka port that can keep the server's answers to itself."""

import contextlib
import select
import socket
import threading
from typing import Self


class Proxy:
    """Listens on a port of its own. While it holds, requests go through and answers don't."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.target = 0
        """The server's port; 0 refuses connections."""
        self.withheld = threading.Event()
        """Set once the server has answered something that did not get through."""
        self._flowing = threading.Event()
        self._flowing.set()
        self._closed = False
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def hold(self) -> None:
        """Let no answer through from now on."""
        self.withheld.clear()
        self._flowing.clear()

    def drop(self) -> None:
        """Throw away what was held: cut every connection, and let the next ones flow."""
        for pair in self._pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        self._pairs.clear()
        self._flowing.set()

    def close(self) -> None:
        """End; returns when no thread is left."""
        self._closed = True
        self.drop()
        for thread in list(self._threads):
            thread.join(10)
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            if not select.select([self._listener], [], [], 0.1)[0]:
                continue
            client, _ = self._listener.accept()
            try:
                server = socket.create_connection(("127.0.0.1", self.target), 5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            self._pairs.append((client, server))
            both = threading.Barrier(2, action=lambda ends=(client, server): [end.close() for end in ends])
            for source, sink, held in ((client, server, False), (server, client, True)):
                thread = threading.Thread(target=self._copy, args=(source, sink, held, both))
                self._threads.append(thread)
                thread.start()

    def _copy(self, source: socket.socket, sink: socket.socket, held: bool, both: threading.Barrier) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if held and not self._flowing.is_set():
                    self.withheld.set()
                    self._flowing.wait()
                    break  # what was held is lost
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        both.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
