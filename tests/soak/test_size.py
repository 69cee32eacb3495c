"""A log that grows: what a record costs, how long calls take and how much the disk holds, over the size written.

`make soak SIZE_GB=50` writes 50 GB and prints a row for each eighth. With TOPICS_SIZE_CAP_GB the topics have a cap,
which is reached, and the disk is to stay as small. `make bench ONLY=size` does the same with other systems.
"""

import os
from functools import partial
from pathlib import Path

import pytest
from soak.growth import BATCH, DATA_BYTES, HEAD, WRITERS, Log, Stretch, grow, row
from soak.growth_clients import HttpClient

from support.http import Api, ok
from support.server import ServerProcess

SIZE_GB = float(os.environ.get("TOPICS_SIZE_GB", "0"))
CAP_GB = float(os.environ.get("TOPICS_SIZE_CAP_GB", "0"))
SMOKE_GB = 0.02
ROWS = 8


def run(server: ServerProcess, size: float, cap: float) -> list[Stretch]:
    """Write `size` bytes to topics with a cap of `cap` bytes each (0: none), and print the table."""
    print(f"\n\n{HEAD}")
    parts = []
    with Api(server.base) as api:
        for topic in range(WRITERS):
            ok(api.put(f"t{topic}", **({"cap_bytes": int(cap)} if cap else {})), 201)
        log = Log(server.pid, server.data_dir, partial(HttpClient, server.http_port))
        for part in grow(log, [size * i / ROWS for i in range(1, ROWS + 1)]):
            print(row(part), flush=True)
            parts.append(part)
        print(f"{sum(part.refused for part in parts)} refused for now")
        states = [api.state(f"t{topic}") for topic in range(WRITERS)]
    assert sum(state["head_seq"] for state in states) == parts[-1].given // DATA_BYTES
    assert cap or all(state["count"] == state["head_seq"] for state in states)
    assert server.stop(60) == 0
    return parts


def test_a_small_log_is_measured(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        parts = run(server, SMOKE_GB * 1e9, 0)
    assert len(parts) == ROWS
    assert parts[-1].given == sum(len(part.appends) for part in parts) * BATCH * DATA_BYTES >= SMOKE_GB * 1e9
    assert sum(part.cpu for part in parts) > 0
    assert all(part.written > part.given for part in parts)
    assert all(part.disk > part.given / 2 for part in parts)


@pytest.mark.soak
@pytest.mark.skipif(not SIZE_GB, reason="TOPICS_SIZE_GB says how much")
@pytest.mark.timeout(0)
def test_a_log_that_grows(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        run(server, SIZE_GB * 1e9, CAP_GB * 1e9)
    for file in server.data_dir.glob("*.sst"):
        file.unlink()  # pytest keeps the directories of some runs
