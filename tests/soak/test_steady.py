"""A queue, a router and groups at the same work for minutes: the last minute costs what the first did.

`make soak MINUTES=10` runs each for ten minutes and prints its tenths; `docs/benchmarks.md` has those of one run.
"""

import os
from pathlib import Path

import pytest
from soak.steady import BATCH, LOADS, growth_of_cpu, growth_of_resident, table

from support.server import ServerProcess

SOAK_SECONDS = float(os.environ.get("TOPICS_SOAK_SECONDS", "0"))
SMOKE_SECONDS = 2.0
ENV = {"TOPICS_MEMORY_BYTES": 64 << 20}  # so that caches are full within the first tenths
MOST_CPU = 1 / 0.9
MOST_RESIDENT = 1.15


@pytest.mark.parametrize("name", LOADS)
async def test_the_work_gets_done(name: str, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "server", env=ENV) as server:
        load = LOADS[name](server)
        await load.run(SMOKE_SECONDS)
        assert load.made >= load.done >= BATCH
        assert server.stop(30) == 0


@pytest.mark.soak
@pytest.mark.skipif(not SOAK_SECONDS, reason="TOPICS_SOAK_SECONDS says for how long")
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", LOADS)
async def test_the_last_minute_costs_what_the_first_did(name: str, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "server", env=ENV) as server:
        load = LOADS[name](server)
        slices = await load.run(SOAK_SECONDS)
        print(f"\n{name}, {load.done:,} records\n\n{table(slices)}\n")
        assert growth_of_cpu(slices) <= MOST_CPU
        assert growth_of_resident(slices) <= MOST_RESIDENT
        assert server.stop(30) == 0
