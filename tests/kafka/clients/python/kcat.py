"""Commands with kcat (the distribution's librdkafka), one process per command."""

import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from commands import Record, RefusedError, record, serve, unpacked

Command = dict[str, Any]

# Fields of a message: a length, -1 for null, precedes each binary one.
_FORMAT = r"%p %o %T %K %S\n%k%s"


def _kcat(command: Command, *options: str, stdin: bytes | None = None) -> bytes:
    conn = command["conn"]
    settings = ["-b", conn["bootstrap"], "-X", "log_level=3", "-X", "fetch.wait.max.ms=100"]
    sasl, tls = "user" in conn, "ca" in conn
    if sasl or tls:
        settings += ["-X", f"security.protocol={'sasl_' if sasl else ''}{'ssl' if tls else 'plaintext'}"]
    if sasl:
        settings += ["-X", "sasl.mechanism=PLAIN"]
        settings += ["-X", f"sasl.username={conn['user']}", "-X", f"sasl.password={conn['password']}"]
    if tls:
        settings += ["-X", f"ssl.ca.location={conn['ca']}"]
    done = subprocess.run(
        ["kcat", *settings, *options], input=stdin, capture_output=True, timeout=command.get("seconds", 30), check=False
    )
    if done.returncode:
        message = done.stderr.decode(errors="replace")
        known = {"out of range": 1, "Unknown topic": 3, "Authentication failed": 58, "authentication": 58}
        code = next((code for words, code in known.items() if words.lower() in message.lower()), None)
        raise RefusedError(code, message)
    return done.stdout


def _spelled_headers(item: Record) -> list[str]:
    options = []
    for name, data in item.get("headers", []):
        options += ["-H", name if data is None else f"{name}={unpacked(data).decode()}"]  # type: ignore[union-attr]
    return options


def produce(command: Command) -> None:
    """Run kcat once per record, with key and value in files, so that they can hold any bytes. Returns no offsets."""
    for item in command["records"]:
        key, value = unpacked(item["key"]), unpacked(item["value"])
        with tempfile.TemporaryDirectory() as directory:
            # The delimiters never occur in data of the tests.
            line = (b"" if key is None else key) + b"\x1e" + (b"" if value is None else value) + b"\x1f"
            path = Path(directory) / "record"
            path.write_bytes(line)
            options = ["-P", "-t", command["topic"], "-p", str(item["partition"]), "-K", "\x1e", "-D", "\x1f"]
            options += ["-z", command.get("codec", "none"), "-X", f"acks={command['acks']}"]
            options += ["-X", f"enable.idempotence={str(command.get('idempotent', False)).lower()}"]
            options += ["-Z"] if key is None or value is None else []
            _kcat(command, *options, *_spelled_headers(item), "-l", str(path))


def _headers(command: Command, *options: str) -> dict[tuple[int, int], list[tuple[str, bytes | None]]]:
    """Headers by partition and offset. kcat prints them as text: NULL is null."""
    found = {}
    for line in _kcat(command, *options, "-f", r"%p %o %h\x1d").split(b"\x1d")[:-1]:
        partition, offset, text = line.split(b" ", 2)
        pairs = [pair.partition(b"=") for pair in text.split(b",") if pair]
        found[int(partition), int(offset)] = [
            (name.decode(), None if data == b"NULL" else data) for name, _, data in pairs
        ]
    return found


def _read(command: Command, *options: str) -> list[Record]:
    return _parsed(_kcat(command, *options, "-f", _FORMAT), _headers(command, *options))


def _parsed(out: bytes, headers: Mapping[tuple[int, int], list[tuple[str, bytes | None]]]) -> list[Record]:
    records, at = [], 0
    while at < len(out):
        end = out.index(b"\n", at)
        partition, offset, timestamp, key_size, value_size = map(int, out[at:end].split())
        at = end + 1
        key = None if key_size < 0 else out[at : at + key_size]
        at += max(key_size, 0)
        value = None if value_size < 0 else out[at : at + value_size]
        at += max(value_size, 0)
        records.append(record(partition, offset, timestamp, key, value, headers.get((partition, offset), [])))
    return records


def read(command: Command) -> dict[str, Any]:
    """Read with kcat -e, which exits only at the end of the partition."""
    records: list[Record] = []
    ends = {}
    for partition, offset in command["start"].items():
        where = "beginning" if offset == "earliest" else str(offset)
        reset = command.get("reset", "error")
        options = ["-C", "-t", command["topic"], "-p", partition, "-o", where, "-e", "-X", f"auto.offset.reset={reset}"]
        records += _read(command, *options)
        ends[partition] = offsets(command | {"partition": int(partition), "at": "latest"})
    return {"records": records, "ends": ends}


def offsets(command: Command) -> int:
    at = {"earliest": -2, "latest": -1}.get(command["at"], command["at"])
    out = _kcat(command, "-Q", "-t", f"{command['topic']}:{command['partition']}:{at}").decode()
    return int(out.rpartition("offset ")[2])


def consume(command: Command) -> list[Record]:
    """Run one member that reads `count` records and commits them on leaving."""
    options = ["-X", "auto.offset.reset=earliest", "-X", "session.timeout.ms=10000", "-c", str(command["count"])]
    out = _kcat(command, *options, "-f", _FORMAT, "-G", command["group"], command["topic"])
    return _parsed(out, {})


def describe_topic(command: Command) -> dict[str, int]:
    out = _kcat(command, "-L", "-t", command["topic"]).decode()
    if "Unknown topic" in out:
        raise RefusedError(3, out)
    return {"partitions": out.count("partition ")}


if __name__ == "__main__":
    serve(
        {
            "consume": consume,
            "describe_topic": describe_topic,
            "offsets": offsets,
            "produce": produce,
            "read": read,
        },
        lambda _: None,
    )
