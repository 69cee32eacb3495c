"""Measurements during Spark: single appends at a steady rate, and the driver process."""

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from bench.tools import data_of
from topics_client.address import Address
from topics_client.connection import Connection
from topics_proto.v1 import topics_service_pb2 as pb

_ROOT = Path(__file__).parents[1]
_SLEEP = 0.005


class Driver:
    """A process of bench/spark_driver.py."""

    def __init__(
        self, log: Path, *, python: str = sys.executable, settings: Mapping[str, str] = {}, core: int | None = None
    ) -> None:
        """`core` is the one that it and its workers stay on; None: all."""
        pinned = [] if core is None else ["taskset", "-c", str(core)]
        env = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
        env |= {
            "PYSPARK_PYTHON": python,
            "PYSPARK_DRIVER_PYTHON": python,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": str(_ROOT / "spark_connector"),
        }
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [*pinned, python, "-m", "bench.spark_driver"],
                env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=_ROOT,
            )  # fmt: skip
        self._send(dict(settings))

    def do(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        """Call a function of the driver; RuntimeError with its log if it fails."""
        self._send({"do": name, **arguments})
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the driver ended:\n{self._log.read_text(errors='replace')[-4000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        self._process.stdout.close()


@dataclass
class Appends:
    """Acknowledged appends: when (seconds since the epoch), their seq, how long each took."""

    done: list[tuple[float, int]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def quantile_ms(self, percent: int) -> float:
        """Milliseconds within which the given percentage was acknowledged."""
        return statistics.quantiles(self.seconds, n=100)[percent - 1] * 1e3


def appends(url: str, topic: str, *, seconds: float, rate: float, records: int = 1) -> Appends:
    """Append at a steady rate, each one waiting for the one before. One that comes late counts from when it was due."""
    found = Appends()
    data = data_of(1).encode()
    with Connection(Address.parse(url)) as connection:
        request = pb.AppendRequest(topic=topic, return_seqs=False, disable_backpressure=True)
        request.columns.data.extend([data] * records)
        connection.unary(connection.topics.Append, request, repeatable=False)
        begun = time.perf_counter()
        for i in range(int(seconds * rate)):
            due = begun + i / rate
            if (early := due - time.perf_counter()) > 0:
                time.sleep(early)
            reply = connection.unary(connection.topics.Append, request, repeatable=False)
            found.seconds.append(time.perf_counter() - due)
            found.done.append((time.time(), reply.last_seq))
    return found


class Background:
    """Appends in a thread while something else is measured."""

    def __init__(self, url: str, topic: str, **how: Any) -> None:
        self.found = Appends()

        def run() -> None:
            self.found = appends(url, topic, **how)

        self._thread = threading.Thread(target=run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()


def lateness_ms(seconds: float) -> float:
    """p99 of the delay of an idle process's wake-ups: the share of the machine in every wait."""
    late = []
    ends = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < ends:
        time.sleep(_SLEEP)
        late.append((time.perf_counter() - begun - _SLEEP) * 1e3)
    return statistics.quantiles(late, n=100)[98]
