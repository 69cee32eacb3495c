"""Names and options of the column families."""

from typing import NamedTuple, Self

from rocksdict import BlockBasedOptions, Cache, ChecksumType, DBCompressionType, DBRecoveryMode, Options

from topics_service.storage import tables
from topics_service.storage.store import Family

_MIN_RESERVE = 4 << 20
_LARGE = 1 << 40
LARGE_FAMILIES = (Family.BLOCKS, Family.SEGMENTS)
_BLOOMED = (Family.IDEMPOTENCY, Family.TAGS, Family.ROWS, Family.INDEXES)
"""Looked up by exact key or prefix: a bloom filter pays."""


def _name(family: Family) -> str:
    return "default" if family is Family.META else family.name.lower()


class Steps(NamedTuple):
    """Bytes: of a memtable or table, of the first level below 0, of a compaction's input below that, and of the log."""

    table: int
    level: int
    compaction: int
    log: int

    @classmethod
    def within(cls, reserve: int) -> Self:
        """Four tables of level 0 and the level below it, which a compaction takes together, in twice the reserve."""
        whole = max(reserve, _MIN_RESERVE) if reserve else _LARGE
        return cls(min(whole // 4, 64 << 20), min(whole, 256 << 20), min(whole, 25 * (64 << 20)), min(whole, 64 << 20))


def _options(family: Family, cache: Cache, write_buffer_bytes: int, steps: Steps | None = None) -> Options:
    steps = steps or Steps.within(0)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_max_total_wal_size(steps.log)  # bounds the replay, which holds the GIL
    options.set_db_write_buffer_size(write_buffer_bytes)
    options.set_write_buffer_size(min(64 << 20 if family in LARGE_FAMILIES else 16 << 20, steps.table))
    options.set_target_file_size_base(steps.table)
    options.set_max_bytes_for_level_base(steps.level)
    options.set_max_compaction_bytes(steps.compaction)
    options.set_max_write_buffer_number(6)
    options.set_level_zero_slowdown_writes_trigger(40)
    options.set_level_zero_stop_writes_trigger(80)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(4)
    options.set_max_log_file_size(4 << 20)  # of RocksDB's own log, which is unbounded by default
    options.set_bytes_per_sync(1 << 20)
    options.set_compression_type(DBCompressionType.lz4())
    table = BlockBasedOptions()
    table.set_format_version(tables.FORMAT_VERSION)  # those that `tables` reads
    table.set_checksum_type(ChecksumType.xxh3())
    table.set_block_cache(cache)
    table.set_cache_index_and_filter_blocks(True)
    if family is Family.SEGMENTS:
        options.set_num_levels(2)  # tables are moved there, and nothing has to be merged
        options.set_soft_pending_compaction_bytes_limit(0)  # none
        options.set_hard_pending_compaction_bytes_limit(0)
    if family in _BLOOMED:
        table.set_bloom_filter(10, False)
    options.set_block_based_table_factory(table)
    return options
