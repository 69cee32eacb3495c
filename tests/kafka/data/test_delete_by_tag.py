"""A delete by tag on records of Kafka clients terminates, however fast they keep writing."""

from unittest.mock import patch

from data_support import Broker, batch

from support.fake_time import in_fake_time
from topics_service.engine.engine import Engine
from topics_service.engine.model import DeleteRequest, TagMatch

TAGGED = DeleteRequest(topic="t", match=TagMatch("Eq", b"a"))


async def produced(broker: Broker, batches: int) -> None:
    """Sealed batches, each a block of its own, of a record tagged `a` and one tagged `b`."""
    for _ in range(batches):
        await broker.produce(batch(b"1", b"2", keys=[b"a", b"b"]))
    with patch("topics_service.engine.maintenance._SMALL_RECORDS", 1):
        broker.seal()


@in_fake_time
async def test_it_does_not_wait_for_what_comes_meanwhile() -> None:
    broker, slices = Broker(), 0
    broker.put("t")
    await produced(broker, 5)
    index = Engine.index

    def busy(self: Engine, *args: int) -> bool:
        nonlocal slices
        slices += 1
        assert slices < 100, "it goes on for ever"
        produce = produced(broker, 2)
        while True:
            try:
                produce.send(None)
            except StopIteration:
                return index(self, *args)

    with patch.object(Engine, "index", busy):
        reply = await broker.api.delete_records(TAGGED)
    assert reply.deleted in (6, 7), "what was there, and what came before it had looked"
    assert slices < 10
    assert (await broker.api.delete_records(TAGGED)).deleted == 5 + 2 * slices - reply.deleted


@in_fake_time
async def test_a_bound_of_the_request_holds() -> None:
    broker = Broker()
    broker.put("t")
    await produced(broker, 5)
    request = DeleteRequest(topic="t", match=TagMatch("Eq", b"a"), before_seq=4)
    assert (await broker.api.delete_records(request)).deleted == 2
    assert (await broker.api.delete_records(TAGGED)).deleted == 3
