"""Writes to topics, each with what it must answer."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from simulation.oracle.topics import LogModel, TopicModel
from support.log_model import Key, LogState, Rec, demand, matches
from topics_service.engine import config as engine_config
from topics_service.engine.model import (
    AppendReply,
    AppendRequest,
    Batch,
    ConfigInput,
    DeleteRequest,
    TagMatch,
    TopicConfig,
)

if TYPE_CHECKING:
    from simulation.world import World


def put(world: "World", name: str, given: dict[str, object], partitions: int | None = None) -> None:
    """Make a topic or change it."""
    config = ConfigInput(**given)  # type: ignore[arg-type]
    topic = world.topics.find(name)
    if topic is not None:
        world.look(topic)
    before = None if topic is None else topic.config
    grows = topic is not None and partitions is not None and partitions != len(topic.logs)
    codes = ("invalid_request", "topic_exists_incompatible") if grows or (before and given.get("type")) else ()
    written = world.w
    reply, ticket = world.call(lambda: world.engine.put_topic(name, config, partitions), *codes)
    demand(reply.created == (topic is None), f'"{name}" is made, or is not')
    if topic is None or before is None:
        demand(ticket > world.synced, "a topic is shown before it is durable")
        return
    demand(reply.config == engine_config.resolve(name, config, before), "another config is set")
    if reply.config != before:
        _reconfigured(world, topic, before, reply.config)
        world.trace.meet("a config changed")
        if reply.config.durability != before.durability:
            world.trace.meet(f"a class changed from {before.durability} to {reply.config.durability}")
    while len(topic.logs) < reply.identity.partition_count:
        topic.logs.append(LogModel(history=[(0, LogState())]))
        world.trace.meet("a partition added")
    world.topics.remember(world.w)
    if topic.config.type == "queue":
        world.queues.written(topic)
    world.owe(ticket, world.w if world.w != written else None, f'the config of "{name}"')


def _reconfigured(world: "World", topic: TopicModel, before: TopicConfig, config: TopicConfig) -> None:
    if topic.config.type == "queue" and before.leases_durable != config.leases_durable:
        world.queues.of(topic).load()
    for partition, log in enumerate(topic.logs):
        hold = world.groups.hold(topic, config.retaining, partition)
        state = log.written.expired(before.ttl_ms, world.now, world.hold(topic, partition))
        state = state.expired(config.ttl_ms, world.now, hold)
        if config.discard == "old":
            state = state.evicted(config, hold)
        if config.durability != "ephemeral" and state.volatile_from:
            state = state.materialized()
            world.trace.meet("records in memory that went to the disk")
        demand(log.commit(state, world.w, world.log(topic, partition), config), "a config that waits for no fsync")
    topic.config = config
    if topic.config.type == "queue":
        world.queues.of(topic).reconfigured(before.leases_durable)


def delete_topic(world: "World", name: str) -> None:
    """Delete a topic."""
    topic = world.topics.find(name)
    reply, ticket = world.call(lambda: world.engine.delete_topic(name))
    demand(reply.deleted == (topic is not None), f'"{name}" was there, or was not')
    if topic is None:
        return
    touching = world.routers.touching(topic)
    demand(reply.routers_removed == touching, f"the routers {reply.routers_removed} go with it, not {touching}")
    world.topics.removed(name, world.w)
    world.routers.removed(touching)
    world.groups.topic_removed(topic.number)
    world.tables.topic_removed(topic.number)
    world.owe(ticket, world.w, f'"{name}" is deleted')
    world.trace.meet("a topic deleted")


def append(
    world: "World", name: str, recs: Sequence[Rec], *, partition: int = 0, key: str | None = None,
    priority: int = 0, delay_ms: int = 0,
) -> AppendReply:  # fmt: skip
    """Append records, whose seqs and times count for nothing, to a topic that is made if it is not there."""
    columns = [[getattr(rec, part) for rec in recs] for part in ("tag", "node", "meta")]
    tags, nodes, metas = (column if any(each is not None for each in column) else None for column in columns)
    request = AppendRequest(
        topic=name, batch=Batch([rec.data for rec in recs], tags, nodes, metas), partition=partition,
        idempotency_key=key, priority=priority, delay_ms=delay_ms,
    )  # fmt: skip
    topic = world.topics.find(name)
    expected = _refusal(world, topic, recs, partition, key)
    reply, ticket = world.call(lambda: world.engine.append(request), *expected)
    demand(not expected, f"a write is taken that is {expected}")
    demand(reply.created == (topic is None), f'"{name}" is made by a write, or is not')
    if topic is None:
        topic = world.topics.by_name[name]
        demand(topic.created == world.engine.writer.written, f'"{name}" is made in one write and filled in another')
        world.trace.meet("a topic made by its first write")
    log, config = topic.logs[partition], topic.config
    known = _known(world, topic, partition, key)
    gated = config.durability == "fsync"
    if known is not None:
        found = (reply.first_seq, reply.count, reply.head_seq)
        demand(reply.deduped, f"a write with key {key} is appended again")
        demand(found == (known.first, known.count, known.head), f"a repeated write is told {found}, not {known}")
        world.owe(ticket, known.promised, f"a repeated write to {name}")
        world.trace.meet("a write deduplicated")
        return reply
    demand(not reply.deduped, f"a new write to {name} with key {key} is taken for an old one")
    hold = world.hold(topic, partition)
    state = log.written.expired(config.ttl_ms, world.now, hold)
    demand(reply.first_seq == state.head + 1, f"the first seq is {reply.first_seq}, the head was {state.head}")
    demand(reply.first_seq > log.seen, f"seq {reply.first_seq} was given out before")
    demand(reply.head_seq == state.head + len(recs), f"{len(recs)} records have other seqs")
    ts = max(world.now, state.last_ts)
    ready_at = world.now + delay_ms if delay_ms else 0
    made = [
        replace(rec, seq=reply.first_seq + i, ts=ts, priority=priority, ready_at=ready_at) for i, rec in enumerate(recs)
    ]
    after = state.appended(made, config, hold)
    world.trace.meet("a record evicted", len(state.live) + len(made) - len(after.live))
    if key is not None:
        end = world.now + config.idempotency_window_ms + 1
        remembered = Key(reply.first_seq, len(recs), reply.head_seq, world.now, end, world.w if gated else None)
        after = replace(after, keys={**after.keys, key: remembered})
    if priority or delay_ms:
        world.queues.of(topic).load()
    waits = log.commit(after, world.w, world.log(topic, partition), config)
    demand(ticket >= waits, "a write is acknowledged before readers see it")
    world.owe(ticket, world.w if gated else None, f"{reply.first_seq}..{reply.head_seq} of {name}/{partition}")
    if not ticket:
        log.seen = max(log.seen, reply.head_seq)
    world.trace.meet(f"a write of the class {config.durability}")
    return reply


def _known(world: "World", topic: TopicModel, partition: int, key: str | None) -> Key | None:
    found = None if key is None else topic.logs[partition].written.keys.get(key)
    return found if found is not None and world.now - found.created <= topic.config.idempotency_window_ms else None


def _refusal(
    world: "World", topic: TopicModel | None, recs: Sequence[Rec], partition: int, key: str | None
) -> tuple[str, ...]:
    if topic is None:
        return ("partition_not_found",) if partition else ()
    if partition >= len(topic.logs):
        return ("partition_not_found",)
    if _known(world, topic, partition, key) is not None:
        return ()
    config, hold = topic.config, world.hold(topic, partition)
    if config.discard != "reject" and hold is None:
        return ()
    count, nbytes = len(recs), sum(rec.size for rec in recs)
    if (config.cap_records and count > config.cap_records) or (config.cap_bytes and nbytes > config.cap_bytes):
        return ("record_too_large",)
    state = topic.logs[partition].written.expired(config.ttl_ms, world.now, hold)
    held = [rec for rec in state.live.values() if config.discard == "reject" or rec.seq > (hold or 0)]
    full = config.cap_records and len(held) + count > config.cap_records
    if full or (config.cap_bytes and sum(rec.size for rec in held) + nbytes > config.cap_bytes):
        world.trace.meet("a write refused for want of room" if hold is None else "a write refused for a group's sake")
        return ("topic_full",)
    return ()


def delete(world: "World", topic: TopicModel, partition: int, before: int | None, match: TagMatch | None) -> None:
    """Delete records of a topic that readers see."""
    log, config = topic.logs[partition], topic.config
    state = log.written.expired(config.ttl_ms, world.now, world.hold(topic, partition))
    bound = min(log.view.head + 1, before if before is not None else log.view.head + 1)
    doomed = [rec.seq for rec in state.between(0, bound - 1) if matches(match, rec.tag)]
    request = DeleteRequest(topic=topic.name, partition=partition, before_seq=before, match=match)
    reply, ticket = world.call(lambda: world.engine.delete_records(request))
    demand(reply.deleted == len(doomed), f"{reply.deleted} records are deleted, not {doomed}")
    if not doomed:
        world.look(topic)
        return
    after = state.without(doomed)
    waits = log.commit(after, world.w, world.log(topic, partition), config)
    demand(ticket >= waits, "a delete is acknowledged before readers see it")
    found = (reply.earliest_seq, reply.head_seq, reply.count, reply.bytes)
    demand(found == (after.earliest, after.head, after.count, after.nbytes), f"a delete leaves {found}")
    world.owe(ticket, world.w if config.durability == "fsync" else None, f"{doomed} of {topic.name} are deleted")
    world.trace.meet("a record deleted", len(doomed))


def sweep(world: "World") -> None:
    """What expired goes: of idempotency keys, too."""
    world.look()
    world.call(world.engine.sweep)
    if world.is_read_only:
        return
    for _, _, log in world.topics.logs():
        due = [name for name, key in log.written.keys.items() if key.expires < world.now]
        if due:
            world.trace.meet("an idempotency key forgotten", len(due))
            log.forget_keys(due, world.w)
