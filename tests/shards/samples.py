"""Values of any type of the API, made by chance from its annotation, and a comparison that looks into blocks."""

import random
import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from support.kafka_batches import aiokafka_batch, samples
from topics_service.engine.batches import FetchPart
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import Batch, Slice
from topics_service.engine.queue.jobs import Job, JobView
from topics_service.storage import block as columnar
from topics_service.storage import kafkablock
from topics_service.storage.block import Block, StoredBlock
from topics_service.storage.joined import Joined
from topics_service.storage.recordbatch import headers

TEXTS = ("", "a", "topic:1", "ü", "x" * 300)


class Samples:
    """Values by chance. Blocks come from a small stock, so that several places of a value have the same one."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.blocks = [self.block() for _ in range(3)]

    def of(self, hint: Any) -> Any:
        """A value of the type."""
        rng, origin, arguments = self.rng, get_origin(hint), get_args(hint)
        if origin is Annotated:
            while not _fits(value := self.of(arguments[0]), hint):
                continue
            return value
        if origin is Literal:
            return rng.choice(arguments)
        if origin is Union or origin is types.UnionType:
            return self.of(rng.choice(arguments))
        if origin in (list, Sequence):
            return [self.of(arguments[0]) for _ in range(rng.randrange(4))]
        if origin is tuple and arguments[-1] is not ...:
            return tuple(map(self.of, arguments))
        if origin in (tuple, frozenset, set):
            return origin(self.of(arguments[0]) for _ in range(rng.randrange(4)))
        if origin in (dict, Mapping):
            return {self.of(arguments[0]): self.of(arguments[1]) for _ in range(rng.randrange(4))}
        if hint in (Slice, FetchPart, Job, JobView, Batch, TopicsError):
            return getattr(self, hint.__name__.lower())(hint)
        if hint is None or hint is types.NoneType:
            return None
        if hint is UnsetType:
            return UNSET
        if hint is Any:
            return self.anything(2)
        if issubclass(hint, Enum):
            return rng.choice(list(hint))
        if issubclass(hint, Struct) or is_dataclass(hint) or hasattr(hint, "_fields"):
            return hint(**{name: self.of(each) for name, each in get_type_hints(hint, include_extras=True).items()})
        return self.scalar(hint)

    def scalar(self, kind: Any) -> Any:
        """A value of a simple type."""
        rng = self.rng
        choices: dict[Any, Any] = {
            bool: rng.random() < 0.5,
            int: rng.choice((0, 1, 127, 1 << 31, (1 << 63) - 1)),
            float: rng.choice((0.0, 1.5, 1e300)),
            str: rng.choice(TEXTS),
            bytes: rng.randbytes(rng.randrange(20)),
            Decimal: Decimal(rng.choice(("0", "1.50", "-12345678901234567890.5"))),
        }
        return choices[kind]

    def anything(self, depth: int) -> Any:
        """A value of JSON or of SQL."""
        kind = self.rng.choice((bool, int, float, str, bytes, Decimal, list, dict, None))
        if kind is None or (kind in (list, dict) and not depth):
            return None
        if kind is list:
            return [self.anything(depth - 1) for _ in range(3)]
        if kind is dict:
            return {name: self.anything(depth - 1) for name in TEXTS[:3]}
        return self.scalar(kind)

    def block(self, count: int | None = None, size: int | None = None) -> Block:
        """A block of columns."""
        rng = self.rng
        count = rng.choice((1, 2, 50, 400)) if count is None else count
        datas = [rng.randbytes(rng.randrange(200) if size is None else size) for _ in range(count)]
        tags, nodes, metas = (
            None if rng.random() < 0.4 else [rng.choice((None, b"", b"tag", b"x" * 30)) for _ in range(count)]
            for _ in range(3)
        )
        kinds = None if rng.random() < 0.5 else bytes(rng.randrange(2) for _ in range(count))
        built = columnar.build(7, rng.randrange(1, 1000), 50, datas, tags, nodes, metas, kinds, 12345)
        if count > 2 and rng.random() < 0.5:
            built.ts_runs = [(1, 40), (count - 1, 50)]
        built.max_ts = 60
        return columnar.decode(columnar.encode(built), 7, built.base_seq) if rng.random() < 0.5 else built

    def batches(self) -> StoredBlock:
        """A block of batches of Kafka clients."""
        rng = self.rng
        made = [aiokafka_batch(samples(rng.randrange(1, 30), seed)) for seed in range(rng.randrange(1, 5))]
        built = [kafkablock.build(7, 1, 50 + i, body, headers(body)[0][1], 9) for i, body in enumerate(made)]
        at = rng.randrange(1, 1000)
        for each in built:
            each.base_seq = at
            at += each.count
        return kafkablock.merge(built)

    def slice(self, _: object) -> Slice:
        block = self.rng.choice(self.blocks)
        start = self.rng.randrange(block.count)
        return Slice(block, start, self.rng.randrange(start + 1, block.count + 1))

    def fetchpart(self, _: object) -> FetchPart:
        block = self.batches() if self.rng.random() < 0.5 else self.rng.choice(self.blocks)
        if isinstance(block, kafkablock.KafkaBlock):
            part = self.rng.choice(block.parts)
            start, stop = part.first, part.stop
        else:
            start = self.rng.randrange(block.count)
            stop = self.rng.randrange(start + 1, block.count + 1)
        dead = tuple(i for i in range(start, stop) if self.rng.random() < 0.1)
        return FetchPart(block, start, stop, dead)

    def job(self, _: object) -> Job:
        block = self.rng.choice(self.blocks)
        return Job(block, self.rng.randrange(block.count), self.of(str), 5, 2, self.of(bool))

    def jobview(self, _: object) -> JobView:
        block = self.rng.choice(self.blocks)
        hints = get_type_hints(JobView)
        rest = {name: self.of(hint) for name, hint in hints.items() if name not in ("block", "position")}
        return JobView(block=block, position=self.rng.randrange(block.count), **rest)

    def batch(self, _: object) -> Batch:
        count = self.rng.choice((1, 2, 8, 9, 40))
        kind: Any = self.rng.choice((bytes, Raw, memoryview))
        column = self.rng.choice((None, [self.rng.choice((None, b"", b"tag")) for _ in range(count)]))
        return Batch([kind(self.scalar(bytes)) for _ in range(count)], column, column, None, None)

    def topicserror(self, _: object) -> TopicsError:
        detail = self.rng.choice((None, {"topic": "t", "seq": 3, "list": [1, 2.5, None]}))
        return TopicsError(
            self.rng.choice(list(Reason)), self.of(str), detail, retry_after_ms=self.rng.choice((None, 5))
        )


def seen(value: Any) -> Any:
    """All that a reader can see in a value: equal values are as good as each other."""
    if isinstance(value, Slice):
        return records(value.block, value.start, value.stop)
    if isinstance(value, FetchPart):
        dead = [value.block.base_seq + each for each in value.dead]
        if not isinstance(value.block, kafkablock.KafkaBlock):
            return records(value.block.columns(), value.start, value.stop), dead
        part = value.block.part_at(value.start)
        batch, ts = bytes(value.block.batch(part)), value.block.ts_at(value.start)
        return batch, ts, value.first_seq, value.stop - value.start, value.block.max_ts, dead
    if isinstance(value, Job | JobView):
        rest = msgspec.structs.astuple(value)[2:]
        return records(value.block, value.position, value.position + 1), seen(rest)
    if isinstance(value, TopicsError):
        return value.reason, value.message, value.detail, value.retry_after_ms
    if isinstance(value, Struct):
        return type(value), [seen(each) for each in msgspec.structs.astuple(value)]
    if isinstance(value, list | tuple | Joined):
        return [seen(each) for each in value]
    if isinstance(value, dict):
        return {name: seen(each) for name, each in value.items()}
    if isinstance(value, Raw | memoryview):
        return bytes(value)
    if is_dataclass(value):
        return type(value), [seen(getattr(value, each.name)) for each in fields(value)]
    return value


def records(block: Block, start: int, stop: int) -> list[Any]:
    """The records start..stop-1 with all that is known of them."""
    columns = (block.tags, block.nodes, block.metas, block.kinds)
    return [
        (
            block.log_id,
            block.base_seq + i,
            block.ts_at(i),
            block.record_data(i),
            block.size_at(i),
            block.cum_bytes + block.sizes_upto(i),
            [None if column is None else column[i] for column in columns],
        )
        for i in range(start, stop)
    ] + [block.max_ts]


def _fits(value: Any, hint: Any) -> bool:
    """Return whether the constraints of a type allow a value of it."""
    try:
        msgspec.convert(value, hint)
    except msgspec.ValidationError:
        return False
    return True
