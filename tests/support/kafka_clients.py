"""Client programs in several languages that obey one set of commands: tests/kafka/clients/README.md."""

import base64
import contextlib
import json
import queue
import subprocess
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

SECONDS = 60.0


class RefusedError(Exception):
    """The command failed; `code` is Kafka's error code, None if the client failed for another reason."""

    def __init__(self, code: int | None, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


def refused(client: "Client", do: str, **facts: Any) -> int | None:
    """The error code that a command is refused with; AssertionError if it is not."""
    try:
        client.call(do, **facts)
    except RefusedError as error:
        return error.code
    raise AssertionError(f"{client.name} was not refused {do}")


class Record(NamedTuple):
    """A record as written (`offset` None) or read; `timestamp` in ms, None to leave it to the client."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int | None = None
    offset: int | None = None


def _packed(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _unpacked(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def records_of(found: Iterable[Mapping[str, Any]]) -> list[Record]:
    """Records that a client program reported, in its order."""
    return [
        Record(
            item["partition"],
            _unpacked(item["key"]),
            _unpacked(item["value"]),
            tuple((name, _unpacked(data)) for name, data in item["headers"]),
            item["timestamp"],
            item["offset"],
        )
        for item in found
    ]


class Reading(NamedTuple):
    """What `read` gives: the records, and per partition the position at the end."""

    records: list[Record]
    ends: dict[int, int]


class Client:
    """A client program that runs; one command at a time, or `send` now and `receive` later."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        connection: Mapping[str, str],
        log: Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.connection = dict(connection)
        self._log = log
        self._out = log.open("ab")
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._out, env=env, start_new_session=True
        )
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(b"")

    def send(self, do: str, **facts: Any) -> None:
        """Begin a command. `connection` in the facts replaces the client's own."""
        connection = facts.pop("connection", self.connection)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, "conn": connection, **facts}).encode() + b"\n")
        self._process.stdin.flush()

    def receive(self, seconds: float = SECONDS) -> Any:
        """The value of the oldest command without one. Raises RefusedError; AssertionError if the program is dead."""
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            raise AssertionError(f"{self.name} gives no answer in {seconds} s:\n{self.log[-2000:]}") from None
        assert line, f"{self.name} is dead:\n{self.log[-2000:]}"
        reply = json.loads(line)
        if "error" in reply:
            raise RefusedError(reply["error"]["code"], reply["error"]["message"])
        return reply["ok"]

    def call(self, do: str, **facts: Any) -> Any:
        """A command and its value."""
        self.send(do, **facts)
        return self.receive()

    @property
    def alive(self) -> bool:
        """Whether the program runs."""
        return self._process.poll() is None

    @property
    def log(self) -> str:
        """What the program has printed on stderr."""
        return self._log.read_text(errors="replace")

    def produce(self, topic: str, records: Sequence[Record], **facts: Any) -> list[list[int] | None]:
        """Write the records; `[partition, offset]` of each in order (None with acks=0)."""
        packed = [
            {
                "partition": item.partition,
                "key": _packed(item.key),
                "value": _packed(item.value),
                "headers": [[name, _packed(data)] for name, data in item.headers],
                "timestamp": item.timestamp,
            }
            for item in records
        ]
        places: list[list[int] | None] = self.call("produce", topic=topic, records=packed, **({"acks": -1} | facts))
        return places or [None] * len(records)  # kcat tells none

    def read(self, topic: str, start: Mapping[int, int | str], **facts: Any) -> Reading:
        """Read these partitions from there ("earliest" or an offset) to the end, without a group."""
        found = self.call("read", topic=topic, start=start, **facts)
        return Reading(records_of(found["records"]), {int(p): end for p, end in found["ends"].items()})

    def consume(self, topic: str, group: str, count: int, protocol: str = "range", **facts: Any) -> list[Record]:
        """Join the group, read the given number of records, commit and leave."""
        return records_of(self.call("consume", topic=topic, group=group, count=count, protocol=protocol, **facts))

    def committed(self, topic: str, group: str) -> dict[int, int]:
        """The committed positions of a group in a topic by partition."""
        return {int(p): offset for p, offset in self.call("committed", topic=topic, group=group).items()}

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait(10)

    def close(self) -> None:
        """End the program: it stops when its stdin ends."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self.kill()
        self._reader.join(5)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._out.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_places(reader: Client, places: list[list[int]], partitions: int, topic: str = "t") -> None:
    """Check that each number that was written to the topic, in turn to its partitions, exists once, in order, and at
    its place: partition and offset as they were acknowledged."""
    found = reader.read(topic, dict.fromkeys(range(partitions), "earliest"))
    for partition in range(partitions):
        values = [value_of(record) for record in found.records if record.partition == partition]
        assert values == list(range(partition, len(places), partitions))
    by_value = {value_of(record): [record.partition, record.offset] for record in found.records}
    assert [by_value[number] for number in range(len(places))] == places


def value_of(record: Record) -> int:
    """The number in a record."""
    return int(record.value or b"")
