"""Keeps the archive of the write-ahead log within its bounds while the server runs."""

import asyncio
import logging
from typing import Final

from topics_server.settings import Settings
from topics_service.statistics import ArchiveStatistics
from topics_service.storage.wal import archive

log = logging.getLogger("topics.archive")

_SECONDS: Final = 2.0


async def trim_archive(settings: Settings, statistics: ArchiveStatistics) -> None:
    """Remove archived logs above the limits of age and size, until cancelled; returns at once if there is no archive.

    `statistics` have the rest.

    Failures are logged, once each time they begin.
    """
    failed = False
    while settings.wal_archive_seconds > 0:
        try:
            kept = await asyncio.to_thread(
                archive.trim, settings.data_path, settings.wal_archive_seconds, settings.wal_archive_bytes
            )
            statistics.bytes, statistics.oldest_time = kept.bytes, kept.oldest
            failed = False
        except OSError as error:
            if not failed:
                log.error("can't trim the archive of the log: %s", error)
            failed = True
        await asyncio.sleep(_SECONDS)
