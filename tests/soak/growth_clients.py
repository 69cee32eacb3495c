"""Connections of the systems whose logs grow: topics over HTTP, Redis streams, Kafka. All requests are made by hand."""

import http.client
import json
import socket
import time
from collections.abc import Sequence

from soak.growth import PAGE

from support.kafka_wire import Wire
from topics_kafka.protocol import ApiKey
from topics_service.storage import recordbatch

_SECONDS = 120.0
_JSON = {"content-type": "application/json"}


class HttpClient:
    """Topics t0, t1 and so on of a server, over one HTTP connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_SECONDS)

    def batch(self, topic: int, first: int, texts: Sequence[str]) -> bytes:
        """The request line and headers are left to the connection: the topic and the body, with a space between."""
        rows = '"},{"data":"'.join(texts)
        return f'/v0/topics/t{topic} {{"records":[{{"data":"{rows}"}}]}}'.encode()

    def append(self, request: bytes) -> bool:
        """False for a 429."""
        path, _, body = request.partition(b" ")
        status, told = self._post(path.decode(), body)
        assert status < 300 or status == 429, told
        return status != 429

    def page(self, topic: int, at: int) -> None:
        """A diff, decoded."""
        body = json.dumps({"from_seq": at, "limit": PAGE}).encode()
        status, told = self._post(f"/v0/topics/t{topic}/diff", body)
        assert status == 200, told
        assert json.loads(told)["records"], told

    def close(self) -> None:
        """Close it."""
        self._connection.close()

    def _post(self, path: str, body: bytes) -> tuple[int, bytes]:
        self._connection.request("POST", path, body, _JSON)
        reply = self._connection.getresponse()
        return reply.status, reply.read()


class RedisClient:
    """Streams t0, t1 and so on, where the record at position n has the id n+1: a batch is a pipeline of XADDs."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), _SECONDS)

    def batch(self, topic: int, first: int, texts: Sequence[str]) -> bytes:
        """An XADD for each text, with one field."""
        name, last = f"t{topic}", first + len(texts)
        head = f"*5\r\n$4\r\nXADD\r\n${len(name)}\r\n{name}\r\n$"
        ids = map(str, range(first + 1, last + 1))
        commands = [
            f'{head}{len(each)}\r\n{each}\r\n$1\r\nd\r\n${len(text) + 2}\r\n"{text}"\r\n'
            for each, text in zip(ids, texts, strict=True)
        ]
        return "".join(commands).encode()

    def append(self, request: bytes) -> bool:
        """Never refused: an error ends the run."""
        self._socket.sendall(request)
        self._lines(2 * request.count(b"\r\nXADD\r\n"))  # each id comes with its length in a line before it
        return True

    def page(self, topic: int, at: int) -> None:
        """An XRANGE: lines of lengths are counted, and not parsed."""
        self._socket.sendall(f"XRANGE t{topic} {at + 1} + COUNT {PAGE}\r\n".encode())
        self._lines(1 + 8 * PAGE)

    def close(self) -> None:
        """Close it."""
        self._socket.close()

    def _lines(self, count: int) -> None:
        """Read as many lines, which must be all that comes."""
        left = count
        while left > 0:
            piece = self._socket.recv(1 << 18)
            if not piece or piece.startswith(b"-") or b"\n-" in piece:
                raise RuntimeError(f"Redis: {piece[:200]!r}")
            left -= piece.count(b"\n")
        assert left == 0


class KafkaClient:
    """Topics t0, t1 and so on, each of one partition: a batch is a record batch of a Produce request."""

    def __init__(self, port: int) -> None:
        self._wire = Wire(port, timeout=_SECONDS)

    def batch(self, topic: int, first: int, texts: Sequence[str]) -> bytes:
        """Not compressed; acks of all replicas, of which there is one."""
        columns = recordbatch.Columns([f'"{text}"'.encode() for text in texts], None, None, None)
        records = recordbatch.encoded(0, [int(time.time() * 1000)] * len(texts), columns, None)
        data = {"name": f"t{topic}", "partition_data": [{"index": 0, "records": records}]}
        body = {"transactional_id": None, "acks": -1, "timeout_ms": 60_000, "topic_data": [data]}
        return b"".join(self._wire.request(ApiKey.PRODUCE, 9, 1, body))

    def append(self, request: bytes) -> bool:
        """Never refused: an error ends the run."""
        self._wire.write_frame(request)
        reply = self._wire.receive(ApiKey.PRODUCE, 9)
        error = reply["responses"][0]["partition_responses"][0]["error_code"]
        assert error == 0, error
        return True

    def page(self, topic: int, at: int) -> None:
        """Whole batches, as Kafka gives them: at least the one that has the position."""
        part = {"partition": 0, "fetch_offset": at, "partition_max_bytes": 1}
        reply = self._wire.call(ApiKey.FETCH, 12, topics=[{"topic": f"t{topic}", "partitions": [part]}])
        found = reply["responses"][0]["partitions"][0]
        assert found["error_code"] == 0, found
        assert found["records"], found

    def close(self) -> None:
        """Close it."""
        self._wire.close()
