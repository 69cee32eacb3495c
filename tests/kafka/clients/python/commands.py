"""The loop of a client program: a JSON command a line on stdin, a JSON reply a line on stdout.

Commands are in ../README.md. Bytes are sent as base64, null as null. A command that the broker refused is answered
`{"error": {"code": ..., "message": ...}}` with Kafka's error code (null for any other failure).
"""

import base64
import json
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Record = dict[str, Any]


class RefusedError(Exception):
    """The broker answered a request with this error code."""

    def __init__(self, code: int | None, message: str) -> None:
        super().__init__(message)
        self.code = code


def packed(data: bytes | None) -> str | None:
    """Encode bytes for JSON."""
    return None if data is None else base64.b64encode(data).decode()


def unpacked(text: str | None) -> bytes | None:
    """Decode bytes from JSON."""
    return None if text is None else base64.b64decode(text)


def record(
    partition: int,
    offset: int,
    timestamp: int,
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]],
) -> Record:
    """Encode a consumed record for JSON; `timestamp` in ms."""
    return {
        "partition": partition,
        "offset": offset,
        "timestamp": timestamp,
        "key": packed(key),
        "value": packed(value),
        "headers": [[name, packed(data)] for name, data in headers],
    }


def numbered(count: int, partitions: int) -> list[Record]:
    """The records of `produce_many`: value i, in partition i modulo `partitions`."""
    return [{"partition": i % partitions, "key": None, "value": packed(b"%d" % i)} for i in range(count)]


class Journal:
    """The events of a group member, one JSON array a line, flushed at once so that they outlive the process."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "a")  # noqa: SIM115 (open as long as the member)
        self._lock = threading.Lock()

    def write(self, event: str, *facts: Any) -> None:
        """One event with the time of the wall clock in seconds."""
        with self._lock:
            self._file.write(json.dumps([event, time.time(), *facts]) + "\n")
            self._file.flush()


class Uncommitted:
    """Processed but uncommitted positions of a member, by partition.

    Commits refused during a rebalance are repeated with the next commit while the member owns the partition, and before
    it leaves. `commit` raises one of `refusals`.
    """

    _LAST_TRIES = 100

    def __init__(self, journal: Journal, commit: Callable[[dict[int, int]], None], *refusals: type[Exception]) -> None:
        self._journal = journal
        self._commit = commit
        self._refusals = refusals
        self._places: dict[int, int] = {}

    def steps(self, stop: threading.Event) -> Iterator[None]:
        """Yield for each poll: until `stop` is set, and then some more if needed."""
        while not stop.is_set():
            yield
        tries = 0
        while self._places and tries < self._LAST_TRIES:
            tries += 1
            yield

    def processed(self, records: list[tuple[int, int]]) -> None:
        """Add the (partition, offset) of each record of a poll, and commit."""
        if records:
            self._journal.write("records", records)
            self._places |= {partition: offset + 1 for partition, offset in records}
        self._flush(self._places)

    def revoked(self, partitions: list[int]) -> None:
        """Commit before an orderly revocation of the partitions."""
        self._flush({partition: self._places[partition] for partition in partitions if partition in self._places})
        self.lost(partitions, "revoked")

    def lost(self, partitions: list[int], event: str = "lost") -> None:
        """Drop partitions that have another owner now."""
        for partition in partitions:
            self._places.pop(partition, None)
        self._journal.write(event, partitions)

    def _flush(self, places: dict[int, int]) -> None:
        after = dict(places)
        if not after:
            return
        self._journal.write("committing", after)
        try:
            self._commit(after)
        except self._refusals as error:
            self._journal.write("refused", repr(error))
            return
        self._journal.write("committed", after)
        for partition in after:
            self._places.pop(partition, None)


class Members:
    """Group members in threads. `run(member command, stop, journal)` consumes until `stop` is set, then leaves."""

    def __init__(self, run: Callable[[Mapping[str, Any], threading.Event, Journal], None]) -> None:
        self._run = run
        self._members: dict[str, tuple[threading.Thread, threading.Event]] = {}

    def start(self, command: Mapping[str, Any]) -> None:
        """Start a member, which writes its journal."""
        stop, journal = threading.Event(), Journal(command["journal"])

        def body() -> None:
            try:
                self._run(command, stop, journal)
                journal.write("left")
            except Exception as error:
                journal.write("failed", repr(error))
                traceback.print_exc()

        thread = threading.Thread(target=body, daemon=True)
        self._members[command["member"]] = thread, stop
        thread.start()

    def stop(self, command: Mapping[str, Any]) -> None:
        """Make a member leave, and wait until it has left."""
        thread, stop = self._members.pop(command["member"])
        stop.set()
        thread.join(30)
        if thread.is_alive():
            raise RuntimeError("the member does not leave")


def serve(commands: Mapping[str, Callable[[dict[str, Any]], Any]], refusal: Callable[[Exception], int | None]) -> None:
    """Answer commands until stdin ends. `refusal` returns the Kafka error code of a client's exception, if any."""
    for line in sys.stdin:
        command = json.loads(line)
        reply: dict[str, Any]
        try:
            reply = {"ok": commands[command["do"]](command)}
        except RefusedError as error:
            reply = {"error": {"code": error.code, "message": str(error)}}
        except Exception as error:
            traceback.print_exc()
            reply = {"error": {"code": refusal(error), "message": f"{type(error).__name__}: {error}"}}
        print(json.dumps(reply), flush=True)
