"""The limits that a request meets, each with its configuration variable (docs/contract.md, 4.3 and 12)."""

from msgspec import Struct


class Elsewhere:
    """Resources in the other shards of a server, which count towards its limits too: nothing unless it has shards."""

    partitions: int = 0
    routers: int = 0
    groups: int = 0
    nbytes: int = 0
    taken: int = 0
    """Bytes of the disk that the others are still to write."""

    def tell_bytes(self, nbytes: int) -> None:
        """Tell the others how many bytes of records are here."""


NOWHERE = Elsewhere()


class Limits(Struct, frozen=True, kw_only=True):
    """Bounds of requests and resources. Zero means unlimited for routers, topics, groups, tables and bytes in all."""

    max_batch_records: int = 10_000
    max_record_bytes: int = 1 << 20
    max_meta_bytes: int = 16 << 10
    max_meta_keys: int = 64
    max_tag_bytes: int = 256
    max_node_bytes: int = 128
    max_idempotency_key_chars: int = 256
    max_limit: int = 1000
    default_limit: int = 256
    max_wait_ms: int = 30_000
    default_batch_bytes: int = 1 << 20
    max_batch_bytes: int = 8 << 20
    max_watch_topics: int = 256
    max_claim: int = 1000
    max_open_claims: int = 1000
    max_routers: int = 10_000
    max_topics: int = 100_000
    max_partitions: int = 1000
    max_groups: int = 10_000
    max_tables: int = 10_000
    group_retention_ms: int = 604_800_000
    max_total_bytes: int = 0
    max_ephemeral_bytes: int = 0
    elsewhere: Elsewhere = NOWHERE
