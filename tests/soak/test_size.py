"""A log that grows: what a record costs, how long calls take and how much the disk holds, over the size written.

`make soak SIZE_GB=50` writes 50 GB and prints a row for each eighth. With TOPICS_SIZE_CAP_GB the topics have a cap,
which is reached, and the disk is to stay as small.
"""

import http.client
import json
import os
import random
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from soak.figures import look

from support.http import Api
from support.server import ServerProcess

SIZE_GB = float(os.environ.get("TOPICS_SIZE_GB", "0"))
CAP_GB = float(os.environ.get("TOPICS_SIZE_CAP_GB", "0"))
SMOKE_GB = 0.02
TOPICS = 2  # each with a writer
ROWS = 8
BATCH = 1000
DATA_BYTES = 150  # of a record, which does not compress much
PAGE = 100
LOOK_SECONDS = 0.1
AGAIN_SECONDS = 0.1


@dataclass
class Writer:
    """One connection that appends batches to a topic of its own, one after the other."""

    server: ServerProcess
    topic: int
    end: float
    """The bytes of data to write."""
    records: int = 0
    given: int = 0
    refused: int = 0
    took: list[float] = field(default_factory=list)
    failure: BaseException | None = None

    def run(self) -> None:
        """Write it all."""
        try:
            with closing(http.client.HTTPConnection("127.0.0.1", self.server.http_port)) as connection:
                self._run(connection)
        except BaseException as error:
            self.failure = error

    def _run(self, connection: http.client.HTTPConnection) -> None:
        source = random.Random(self.topic)
        while self.given < self.end:
            text = b64encode(source.randbytes(DATA_BYTES * BATCH * 3 // 4)).decode()
            rows = [text[at : at + DATA_BYTES - 2] for at in range(0, DATA_BYTES * BATCH, DATA_BYTES)]
            body = json.dumps({"records": [{"data": row} for row in rows]}).encode()
            while True:
                began = time.perf_counter()
                connection.request("POST", f"/v0/topics/t{self.topic}", body, {"content-type": "application/json"})
                reply = connection.getresponse()
                told = reply.read()
                if reply.status != 429:
                    break
                self.refused += 1
                time.sleep(AGAIN_SECONDS)
            assert reply.status < 300, told
            self.took.append(time.perf_counter() - began)
            self.records += len(rows)
            self.given += DATA_BYTES * len(rows)


@dataclass(frozen=True)
class Moment:
    """What had been done by then. `written`: the bytes that the process wrote to files, as the kernel counts them."""

    at: float
    records: int
    given: int
    written: int
    cpu: float
    refused: int


def moment(server: ServerProcess, writers: list[Writer]) -> Moment:
    fields = dict(line.split(": ") for line in Path(f"/proc/{server.pid}/io").read_text().splitlines())
    return Moment(
        at=time.monotonic(),
        records=sum(writer.records for writer in writers),
        given=sum(writer.given for writer in writers),
        written=int(fields["write_bytes"]),
        cpu=look(server).cpu,
        refused=sum(writer.refused for writer in writers),
    )


def share(values: list[float], part: float) -> float:
    """Return the value in ms below which this part of them is."""
    return 1000 * sorted(values)[min(len(values) - 1, int(part * len(values)))] if values else 0.0


def row(before: Moment, now: Moment, disk: int, appends: list[float], pages: list[float]) -> str:
    records, given = now.records - before.records, now.given - before.given
    cells = [
        f"{now.given / 1e9:.2f}",
        f"{records / (now.at - before.at) / 1000:.0f}",
        f"{share(appends, 0.5):.1f}, {share(appends, 0.99):.0f}",
        f"{1e6 * (now.cpu - before.cpu) / records:.2f}",
        f"{(now.written - before.written) / given:.2f}",
        f"{disk / 1e9:.2f}",
        f"{share(pages, 0.5):.1f}, {share(pages, 0.99):.0f}",
        f"{now.refused - before.refused}",
    ]
    return f"| {' | '.join(cells)} |"


def rows(server: ServerProcess, size: float, cap: float) -> Iterator[str]:
    """Write `size` bytes to topics with a cap of `cap` bytes each (0: none), and read pages at random places."""
    with Api(server.base) as api:
        for topic in range(TOPICS):
            api.put(f"t{topic}", **({"cap_bytes": int(cap)} if cap else {}))
        writers = [Writer(server, topic, size / TOPICS) for topic in range(TOPICS)]
        threads = [threading.Thread(target=writer.run) for writer in writers]
        before, source = moment(server, writers), random.Random(0)
        seen, pages, mark = [0] * TOPICS, list[float](), size / ROWS
        for thread in threads:
            thread.start()
        while True:
            over = not any(thread.is_alive() for thread in threads)
            writer = source.choice(writers)
            if writer.records > PAGE:
                began = time.perf_counter()
                page = api.read(f"t{writer.topic}", source.randrange(writer.records - PAGE), limit=PAGE)
                assert cap or len(page["records"]) == PAGE
                pages.append(time.perf_counter() - began)
            if over or sum(writer.given for writer in writers) >= mark:
                now = moment(server, writers)
                appends = [took for writer, start in zip(writers, seen, strict=True) for took in writer.took[start:]]
                if now.records > before.records:
                    yield row(before, now, look(server).disk, appends, pages)
                before, seen, pages = now, [len(writer.took) for writer in writers], []
                mark += size / ROWS
            if over:
                break
            time.sleep(LOOK_SECONDS)
        for thread in threads:
            thread.join()
        for writer in writers:
            if writer.failure is not None:
                raise writer.failure
            state = api.state(f"t{writer.topic}")
            assert state["head_seq"] == writer.records
            assert cap or state["count"] == writer.records


def run(server: ServerProcess, size: float, cap: float) -> int:
    """Print the table; return the number of its rows."""
    print("\n\n| GB | k rec/s | append p50, p99 ms | CPU us/rec | written/given | disk GB | page p50, p99 ms | 429s |")
    print("|---|---|---|---|---|---|---|---|")
    count = 0
    for line in rows(server, size, cap):
        print(line, flush=True)
        count += 1
    assert server.stop(60) == 0
    return count


def test_a_small_log_is_measured(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        assert run(server, SMOKE_GB * 1e9, 0) >= 1


@pytest.mark.soak
@pytest.mark.skipif(not SIZE_GB, reason="TOPICS_SIZE_GB says how much")
@pytest.mark.timeout(0)
def test_a_log_that_grows(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        run(server, SIZE_GB * 1e9, CAP_GB * 1e9)
    for file in server.data_dir.glob("*.sst"):
        file.unlink()  # pytest keeps the directories of some runs
