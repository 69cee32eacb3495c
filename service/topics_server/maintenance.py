"""Periodic work on the event loop: recovery slices, maintenance of the engine, free space, tombstone compaction,
space of dead records."""

import asyncio
import logging
import time
from collections.abc import Callable

from topics_client.units import counted
from topics_server.disk import FreeSpace
from topics_service.engine.engine import Engine
from topics_service.engine.stored_catalog import StoredCatalog
from topics_service.storage import segment_upkeep
from topics_service.storage.boot import boot_id
from topics_service.storage.segment_upkeep import SegmentUpkeep
from topics_service.storage.tombstone_compaction import PERIOD_SECONDS, TombstoneCompaction

log = logging.getLogger("topics.server")

_UPKEEP_SECONDS = 0.02
_SWEEP_SECONDS = 1.0
_RECOVERY_SLICE_SECONDS = 0.02


async def recover(
    engine: Engine,
    stop: asyncio.Event,
    boot: str | None = None,
    stored: StoredCatalog | None = None,
    *,
    syncs: bool = True,
) -> None:
    """Recover in slices, between the answers to health probes, until done or `stop` is set.

    `boot` stands in for the id of this boot of the machine: where it is new, a tail may be lost. `stored` is what
    is known of the store already. For `syncs` see `Engine.recover`.
    """
    slice_ends = time.monotonic() + _RECOVERY_SLICE_SECONDS
    for _ in engine.recover(boot_id() if boot is None else boot, stored, syncs=syncs):
        if stop.is_set():
            return
        if time.monotonic() >= slice_ends:
            await asyncio.sleep(0)
            slice_ends = time.monotonic() + _RECOVERY_SLICE_SECONDS


def log_ready(*engines: Engine) -> None:
    """Log that recovery is complete, unless a stop has ended it."""
    if all(engine.recovered >= 1 for engine in engines):
        log.info("ready with %s", counted(sum(engine.ready().topics for engine in engines), "topic"))


async def keep_up(engine: Engine, disk: FreeSpace, set_serving: Callable[[bool], None]) -> None:
    """Run the engine's maintenance in slices between requests, until cancelled; retry a failed slice a second later."""
    loop = asyncio.get_running_loop()
    next_sweep = loop.time() + _SWEEP_SECONDS
    while True:
        try:
            more = engine.maintain()
            if loop.time() >= next_sweep:
                next_sweep = loop.time() + _SWEEP_SECONDS
                engine.sweep()
                _measure(engine, disk)
                set_serving(engine.ready().ready)  # a storage failure ends it
            await asyncio.sleep(0 if more else _UPKEEP_SECONDS)
        except Exception:
            log.exception("maintenance failed")
            await asyncio.sleep(_SWEEP_SECONDS)


async def compact_tombstones(compaction: TombstoneCompaction) -> None:
    """Periodically compact SST files that hold only tombstones, until cancelled. Errors are logged and retried."""
    while True:
        await asyncio.sleep(PERIOD_SECONDS)
        try:
            await asyncio.to_thread(compaction.run)
        except Exception as error:  # rocksdict raises bare Exception
            log.warning("could not compact tombstone-only SST files, will retry: %s", error)


async def keep_segments(upkeep: SegmentUpkeep) -> None:
    """Periodically give back the space of dead records, until cancelled. Errors are logged and retried."""
    while True:
        await asyncio.sleep(segment_upkeep.PERIOD_SECONDS)
        try:
            await asyncio.to_thread(upkeep.run)
        except Exception as error:  # rocksdict raises bare Exception
            log.warning("could not give back the space of dead records, will retry: %s", error)


def _measure(engine: Engine, disk: FreeSpace) -> None:
    """Measure the free space. Without its directory the server acknowledges no writes."""
    try:
        disk.measure()
    except OSError as error:
        if engine.writer.failure is None:
            log.critical("the data directory was removed or replaced, the server is now read-only: %s", error)
            engine.sync_failed(error)
