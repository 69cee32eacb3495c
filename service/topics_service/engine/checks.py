"""Limits of a write, checked before anything else looks at it (docs/contract.md, 4)."""

from itertools import repeat

from topics_service.engine.errors import Reason, TopicsError, invalid
from topics_service.engine.limits import Limits
from topics_service.engine.model import AppendRequest, Batch, Identity, TopicType
from topics_service.engine.placement import group_of, zone_of
from topics_service.storage.varbinary import Column, lengths

MAX_PRIORITY = 9


def check_count(batch: Batch, limits: Limits) -> None:
    """Raise `invalid_request` for a write without records and `batch_too_large` for too many."""
    count = len(batch.datas)
    if not count:
        raise invalid("records must hold at least one record")
    if count > limits.max_batch_records:
        raise too_many_records(limits, f", this one has {count}")


def too_many_records(limits: Limits, more: str = "") -> TopicsError:
    """The refusal of a write with too many records."""
    return TopicsError(Reason.BATCH_TOO_LARGE, f"a write takes at most {limits.max_batch_records} records{more}")


def check_placement(name: str, identity: Identity, placement: str) -> None:
    """Raise `topic_exists_incompatible` unless the topic is in the group or zone that a PUT names, if it does."""
    if placement and placement != identity.placement:
        raise placed_otherwise(name, identity.placement)


def placed_otherwise(name: str, placement: str) -> TopicsError:
    """The refusal to move a topic, which has this placement."""
    group, zone = group_of(placement), zone_of(placement)
    where = f'zone "{zone}"' if zone else f'the placement group "{group}"' if group else "no placement group, or zone"
    return TopicsError(
        Reason.TOPIC_EXISTS_INCOMPATIBLE,
        f'topic "{name}" is in {where}; that can\'t be changed',
        {"topic": name, "placement": group} | ({"zone": zone} if zone else {}),
    )


def check_records(batch: Batch, limits: Limits) -> None:
    """Raise for the first record over a limit: `invalid_request` or `record_too_large`."""
    metas = batch.metas
    # One bad record decides which error it is: the first. Of that, tag, node and meta are looked at before the size.
    bad: list[tuple[int, TopicsError]] = []
    for name, column, limit in (
        ("tag", batch.tags, limits.max_tag_bytes),
        ("node", batch.nodes, limits.max_node_bytes),
        ("meta", metas, limits.max_meta_bytes),
    ):
        if column is not None and _longest(column) > limit:
            i = next(i for i, value in enumerate(column) if value is not None and len(value) > limit)
            bad.append((i, invalid(f"records[{i}].{name} is longer than {limit} bytes")))
    limit = limits.max_record_bytes
    if max(batch.sizes) + (0 if metas is None else _longest(metas)) > limit:
        sizes = [size + len(meta or b"") for size, meta in zip(batch.sizes, metas or repeat(None), strict=False)]
        for i, size in enumerate(sizes):
            if size > limit:
                message = f"records[{i}] has {size} bytes, the limit is {limit}"
                bad.append((i, TopicsError(Reason.RECORD_TOO_LARGE, message)))
                break
    if bad:
        raise min(bad, key=lambda found: found[0])[1]


def _longest(column: Column) -> int:
    try:
        return max(map(len, column))  # type: ignore[arg-type]  # None has no length: then the slow way
    except TypeError:
        return max(lengths(column, 0))


def check_schedule(request: AppendRequest) -> None:
    """Raise `invalid_request` for a delay or priority that no queue takes."""
    if request.delay_ms < 0:
        raise invalid("delay_ms must not be negative")
    if not 0 <= request.priority <= MAX_PRIORITY:
        raise invalid(f"priority must be an integer from 0 to {MAX_PRIORITY}")


def check_scheduled_type(request: AppendRequest, kind: TopicType) -> None:
    """Raise `invalid_request` for a delay or priority on a topic that is not a queue."""
    if request.is_scheduled and kind != "queue":
        raise invalid(f'delay_ms and priority need a queue; topic "{request.topic}" is a {kind}')


def check_idempotency_key(key: str | None, limits: Limits) -> None:
    """Raise `invalid_request` for a key that is too long. The empty key is a key."""
    if key is not None and len(key) > limits.max_idempotency_key_chars:
        raise invalid(f"idempotency_key is longer than {limits.max_idempotency_key_chars} characters")


def batch_bytes(batch: Batch) -> int:
    """The record bytes of a batch: data and meta."""
    total = sum(batch.sizes)
    if batch.metas is not None:
        total += sum(lengths(batch.metas, 0))
    return total
