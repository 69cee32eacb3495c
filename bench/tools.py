"""The load generators and the peer: wrk, redis-benchmark and redis-server, all from Debian's packages."""

import contextlib
import json
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MISSING = "not installed (apt-get install -y wrk redis-server)"


@dataclass(frozen=True)
class Rate:
    """The results of a load generator."""

    calls_per_second: float
    p50_ms: float
    p99_ms: float


def payload(i: int, *, tagged: bool = True) -> str:
    """One record of a write body: about 150 bytes of JSON data, and a tag."""
    data = {
        "type": "resize",
        "url": f"s3://bucket/incoming/{i:06}.png",
        "w": 1280,
        "h": 720,
        "user": f"user-{i % 997}",
        "trace": f"{i * 2654435761 % 2**32:08x}",
        "note": "scale down and keep the ratio",
    }
    record: dict[str, object] = {"data": data}
    if tagged:
        record["tag"] = f"tenant{i % 50}:job-{i}"
    return json.dumps(record, separators=(",", ":"))


def write_body(records: int, *, tagged: bool = True) -> str:
    """A write body with the given number of records."""
    return f'{{"records":[{",".join(payload(i, tagged=tagged) for i in range(records))}]}}'


def data_of(i: int) -> str:
    """The data of `payload(i)` alone, for peers."""
    return json.dumps(json.loads(payload(i))["data"], separators=(",", ":"))


def have(*programs: str) -> bool:
    """Whether all programs are installed."""
    return all(shutil.which(program) for program in programs)


def wrk(url: str, body: str, *, connections: int, seconds: int, lua: str = "") -> Rate:
    """POST the same body over and over. `lua` is added to the script. Raises RuntimeError if a reply was no success."""
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        quoted = body.replace("\\", "\\\\").replace("'", "\\'")
        script.write(f"wrk.method='POST'\nwrk.headers['Content-Type']='application/json'\nwrk.body='{quoted}'\n")
        script.write(lua)
        script.flush()
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", "-s", script.name, url]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if "Non-2xx" in out or "Socket errors" in out:
        raise RuntimeError(out)
    rate = float(_found(r"Requests/sec:\s+([\d.]+)", out))
    return Rate(rate, _milliseconds(_found(r"^\s+50%\s+(\S+)", out)), _milliseconds(_found(r"^\s+99%\s+(\S+)", out)))


def redis_benchmark(port: int, arguments: list[str], *, calls: int, clients: int, pipeline: int) -> Rate:
    """Run one command over and over."""
    command = ["redis-benchmark", "-p", str(port), "-n", str(calls), "-c", str(clients), "-P", str(pipeline)]
    out = subprocess.run([*command, "--precision", "3", *arguments], capture_output=True, text=True, check=True).stdout
    rate = float(_found(r"throughput summary:\s+([\d.]+)", out))
    summary = re.search(r"avg\s+min\s+p50\s+p95\s+p99\s+max\s*\n\s*([\d. ]+)", out)
    assert summary is not None, out
    numbers = [float(number) for number in summary[1].split()]
    return Rate(rate, numbers[2], numbers[4])


@contextlib.contextmanager
def redis_server(directory: Path, fsync: str) -> Iterator[int]:
    """A Redis with an append-only file; yields its port. `fsync` is `everysec` or `always`."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory), "--save", ""]
    process = subprocess.Popen(
        [*command, "--appendonly", "yes", "--appendfsync", fsync], stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
    )
    try:
        subprocess.run(
            ["timeout", "10", "sh", "-c", f"until redis-cli -p {port} ping 2>/dev/null; do sleep 0.05; done"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        yield port
    finally:
        process.terminate()
        process.wait(60)  # a large file may have to be synced first


@contextlib.contextmanager
def nats_server(directory: Path) -> Iterator[int]:
    """A NATS with JetStream, on files; yields its port."""
    directory.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["nats-server", "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(directory)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait(10)


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text, re.MULTILINE)
    if match is None:
        raise RuntimeError(f"{pattern} is not in:\n{text}")
    return match[1]


def _milliseconds(text: str) -> float:
    number, unit = re.fullmatch(r"([\d.]+)(us|ms|s)", text).groups()  # type: ignore[union-attr]
    return float(number) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[unit]
