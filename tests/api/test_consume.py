"""Consuming and acknowledging in fake time: positions, pages, the long poll, gaps, rights, and no leftovers."""

import asyncio
from typing import Any

import pytest

from support.consuming import Consuming, refused
from support.fake_time import in_fake_time, steps
from topics_service.api.access.auth import Principal, Role, Scope
from topics_service.api.observers import Observation, Observers
from topics_service.api.sql.requests import Gap
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import AppendRequest, Batch, ConfigInput, DeleteRequest, TagMatch
from topics_service.engine.offsets.positions import CommitItem, lag_of
from topics_service.engine.tables import plans
from topics_service.engine.tables.model import Op


@in_fake_time
async def test_a_message_has_the_whole_envelope() -> None:
    at = Consuming()
    at.create("t")
    at.route("t", Op.INSERT)
    at.insert(7)
    at.engine.append(AppendRequest(topic="t", batch=Batch(datas=[b"\xff\x00"], kinds=b"\1", metas=[b'{"op":"x"}'])))
    at.engine.append(AppendRequest(topic="t", batch=Batch(datas=[b"null"], tags=[b"k"])))
    event, plain, null = (await at.consume()).messages
    assert event.topic_id == at.engine.catalog.topics["t"].topic_id
    assert (event.partition_id, event.offset, event.ts) == (0, 0, at.clock.now_ms())
    assert (event.source_table, event.op, event.payload_mode) == ("chat.messages", "Insert", "Full")
    assert event.message_id is not None
    assert event.message_id.isdigit()
    assert (event.payload, event.key) == (b'{"id":7,"owner":"ann","body":"","score":7}', "7")
    assert (plain.message_id, plain.source_table, plain.op, plain.payload_mode) == (None, None, None, "Full")
    assert (plain.payload, plain.key) == (b"\xff\x00", None)
    assert (null.payload, null.key, null.offset) == (None, "k", 2)


@in_fake_time
async def test_pages_end_and_say_truly_whether_more_follows() -> None:
    at = Consuming()
    at.routed()
    first = await at.consume(limit=4)
    assert ([m.offset for m in first.messages], first.next_offset, first.has_more) == ([0, 1, 2, 3], 4, True)
    last = await at.consume(start=4, limit=6)
    assert ([m.offset for m in last.messages], last.next_offset, last.has_more) == ([4, 5, 6, 7, 8, 9], 10, False)
    for start in (10, 12345):
        none = await at.consume(start=start)
        assert (none.messages, none.next_offset, none.has_more, none.gap) == ([], start, False, None)
    at.engine.delete_records(DeleteRequest(topic="t", match=TagMatch("Eq", b"9")))
    page = await at.consume(limit=9)
    assert (page.next_offset, page.has_more) == (9, False), "what was deleted does not follow"
    at.engine.delete_records(DeleteRequest(topic="t", before_seq=6))
    page = await at.consume(limit=1)
    assert ([m.offset for m in page.messages], page.has_more, page.gap) == ([5], True, None)
    assert len(await at.offsets(limit=10**9)) == 4


@in_fake_time
async def test_a_page_keeps_to_the_bytes_of_a_diff() -> None:
    at = Consuming()
    at.create("t")
    at.route("t", Op.INSERT)
    for n in range(5):
        at.write((1, [n, None, "x" * 400_000, None], None))
    at.engine.sync()
    page = await at.consume()
    assert (len(page.messages), page.next_offset, page.has_more) == (2, 2, True)


@in_fake_time
async def test_start_counts_while_there_is_no_position_and_an_offset_always() -> None:
    at = Consuming()
    at.routed()
    assert await at.offsets(start="earliest") == list(range(10))
    assert at.position() is None, "reading from the earliest notes nothing"
    assert await at.ack(4) == 4
    for start in ("earliest", "latest"):
        assert await at.offsets(start=start) == [5, 6, 7, 8, 9]
    assert await at.offsets(start=2) == list(range(2, 10)), "replay"
    assert at.position() == 5
    assert await at.offsets(None) == list(range(10)), "without a group"
    assert await at.offsets(None, start="latest") == []


@in_fake_time
async def test_latest_is_noted_durably_before_the_wait() -> None:
    at = Consuming()
    at.routed()
    at.settles = 0
    call = asyncio.create_task(at.consume(start="latest", timeout_seconds=30))
    await asyncio.sleep(5)
    assert (at.position(), at.settles) == (10, 1)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    at.insert(10, 11)
    at.restart()
    assert await at.offsets(start="latest") == [10, 11]


@in_fake_time
async def test_acks_only_go_forward_and_never_beyond_the_last_message() -> None:
    at = Consuming()
    at.routed()
    assert [await at.ack(upto) for upto in (3, 1, 7, 7, 0, 9)] == [3, 3, 7, 7, 7, 9]
    for bad in (10, 12345, -1):
        error = await refused(Reason.INVALID_REQUEST, at.ack(bad, "other"))
        assert error.detail is not None
        assert error.detail["last_offset"] == 9
    assert at.engine.groups.find("other") is None
    at.create("empty")
    await refused(Reason.INVALID_REQUEST, at.ack(0, topic="empty"))


@in_fake_time
async def test_an_ack_is_as_durable_as_its_topic() -> None:
    at = Consuming()
    at.routed("t")
    at.create("f", durability="fsync")
    at.route("f", Op.INSERT)
    at.insert(20)
    at.settles = 0
    await at.ack(3)
    assert at.settles == 0
    await at.ack(0, topic="f")
    assert at.settles == 1


@in_fake_time
async def test_a_position_of_kafka_beyond_the_head_counts_as_the_head() -> None:
    at = Consuming()
    at.routed(retain_until_acked_by=("g",), cap_records=10)
    assert at.engine.groups.commit("g", [CommitItem("t", 0, 500)], kafka=True)[0] == [None]
    assert at.position() == 500
    assert await at.offsets() == []
    page = await at.consume()
    assert (page.next_offset, page.gap) == (10, None)
    (state,) = at.engine.groups.positions("g")
    assert (state.lag, lag_of(500, 10)) == (0, 0)
    assert await at.ack(5) == 9, "it has acknowledged all there is"
    for commit in (
        at.engine.groups.commit("g", [CommitItem("t", 0, 500)])[0][0],
        await refused(Reason.INVALID_REQUEST, at.ack(499)),
    ):
        assert isinstance(commit, TopicsError)
        assert commit.reason is Reason.INVALID_REQUEST
    at.insert(*range(10, 15))
    assert await at.offsets(None) == list(range(5, 15)), "retention holds nothing back"


@in_fake_time
async def test_what_retention_took_is_told_and_deletes_are_silent() -> None:
    at = Consuming()
    at.routed(count=3, cap_records=4)
    await at.ack(0)
    at.insert(*range(10, 14))
    page = await at.consume()
    assert page.gap == Gap(from_offset=1, to_offset=2, reason="cap")
    assert [m.offset for m in page.messages] == [3, 4, 5, 6]
    assert (await at.consume("new")).gap is None, "the earliest begins behind it"
    at.engine.delete_records(DeleteRequest(topic="t", before_seq=7))
    at.define(plans.ClearTopic("t"))
    page = await at.consume()
    assert (page.gap, page.messages, page.next_offset) == (Gap(from_offset=1, to_offset=6, reason="cap"), [], 7)
    assert await at.ack(6) == 6
    assert (await at.consume()).gap is None


@in_fake_time
async def test_a_call_waits_for_a_message_and_answers_when_it_is_there() -> None:
    at = Consuming()
    at.routed(count=0)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    calls = [asyncio.create_task(at.consume(f"g{n}", timeout_seconds=20)) for n in range(20)]
    late = asyncio.create_task(at.consume("late", start=3, timeout_seconds=20))
    await asyncio.sleep(7)
    at.write((1, [1, None, None, None], None))  # written, and not visible before the fsync
    await steps(5)
    assert not any(call.done() for call in calls)
    at.engine.sync()
    replies = await asyncio.gather(*calls)
    assert loop.time() - begun == pytest.approx(7)
    assert all([m.offset for m in reply.messages] == [0] for reply in replies)
    at.insert(2, 3)
    await steps(5)
    assert not late.done(), "the offset that it waits for is not written"
    at.insert(4)
    assert [m.offset for m in (await late).messages] == [3]
    assert not at.engine.catalog.topics["t"].log._parked
    assert not at.waiting


@in_fake_time
async def test_timeouts_have_a_default_and_a_maximum() -> None:
    at = Consuming()
    at.routed(count=0)
    at.api.default_timeout, at.api.max_timeout = 3.0, 7.0
    loop = asyncio.get_running_loop()
    for given, waited in ((None, 3), (0, 0), (0.5, 0.5), (60, 7)):
        begun = loop.time()
        reply = await at.consume(timeout_seconds=given)
        assert (reply.messages, loop.time() - begun) == ([], pytest.approx(waited))


@in_fake_time
async def test_a_gap_alone_does_not_end_the_wait() -> None:
    at = Consuming()
    at.routed(count=3, cap_records=3)
    at.insert(10)
    at.define(plans.ClearTopic("t"))
    call = asyncio.create_task(at.consume(start=0, timeout_seconds=20))
    await asyncio.sleep(5)
    assert not call.done()
    at.insert(20)
    reply = await call
    assert reply.gap is not None
    assert [m.offset for m in reply.messages] == [4]


@in_fake_time
async def test_a_wait_ends_with_its_topic_with_its_caller_and_with_the_server() -> None:
    at = Consuming()
    at.routed(count=0)
    waits = [asyncio.create_task(at.consume(f"g{n}", timeout_seconds=100)) for n in range(3)]
    await steps(3)
    waits[0].cancel()
    await asyncio.gather(waits[0], return_exceptions=True)
    assert len(at.engine.catalog.topics["t"].log._parked or ()) == 2
    at.engine.delete_topic("t")
    at.create("t")
    await refused(Reason.TOPIC_NOT_FOUND, waits[1])
    await refused(Reason.TOPIC_NOT_FOUND, waits[2])
    last = asyncio.create_task(at.consume(timeout_seconds=100))
    await steps(3)
    at.engine.draining = True
    for event in at.waiting:
        event.set()
    assert (await last).messages == []


@in_fake_time
async def test_an_alias_is_the_topic() -> None:
    at = Consuming()
    at.routed()
    at.define(plans.SetAlias("t", "nick"))
    assert await at.offsets(topic="nick") == list(range(10))
    assert await at.ack(3, topic="nick") == 3
    assert await at.offsets() == list(range(4, 10))
    at.define(plans.SetAlias("t", None))
    await refused(Reason.TOPIC_NOT_FOUND, at.consume(topic="nick"))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"topic": "absent"}, Reason.TOPIC_NOT_FOUND),
        ({"topic": "queue"}, Reason.NOT_A_LOG),
        ({"partition": 1}, Reason.PARTITION_NOT_FOUND),
        ({"partition": -1}, Reason.INVALID_REQUEST),
        ({"group": ""}, Reason.INVALID_REQUEST),
        ({"group": "g" * 256}, Reason.INVALID_REQUEST),
        ({"limit": 0}, Reason.INVALID_REQUEST),
        ({"limit": -1}, Reason.INVALID_REQUEST),
        ({"start": -1}, Reason.INVALID_REQUEST),
        ({"start": 1 << 63}, Reason.INVALID_REQUEST),
        ({"timeout_seconds": -1}, Reason.INVALID_REQUEST),
        ({"timeout_seconds": float("nan")}, Reason.INVALID_REQUEST),
    ],
    ids=str,
)
def test_a_bad_request_is_refused_and_makes_no_group(given: dict[str, Any], reason: Reason) -> None:
    @in_fake_time
    async def run() -> None:
        at = Consuming()
        at.routed()
        at.engine.put_topic("queue", ConfigInput(type="queue"))
        at.engine.sync()
        await refused(reason, at.consume(**({"start": "latest"} | given)))
        assert not at.engine.groups.index.by_name
        if "limit" not in given and "start" not in given and "timeout_seconds" not in given:
            await refused(reason, at.ack(3, **given))
        assert not at.engine.groups.index.by_name

    run()


@in_fake_time
async def test_rights_hold_for_the_topic_its_alias_and_the_group() -> None:
    at = Consuming()
    at.routed("team.t")
    at.define(plans.SetAlias("team.t", "nick"))
    user = Principal("user:u", frozenset(), None, Role.USER)
    reading = Principal("user:r", frozenset({Scope.READ}), None, Role.USER)
    narrow = Principal("user:s", frozenset({Scope.READ, Scope.WRITE}), ("team.", "nick"), Role.SERVICE)
    other = Principal("key1", frozenset({Scope.READ}), ("nick",))
    writer = Principal("key2", frozenset({Scope.WRITE}), None)
    for topic, group, principal in (
        ("team.t", "team.g", user), ("team.t", "team.g", writer), ("team.t", "g", narrow), ("t", "team.g", narrow),
        ("nick", "nick.g", other),
    ):  # fmt: skip
        for call in (at.consume(group, topic, principal=principal), at.ack(0, group, topic, principal=principal)):
            await refused(Reason.FORBIDDEN, call)
    with pytest.raises(TopicsError) as error:
        await at.consume("nick.g", "nick", principal=other)
    assert "team" not in f"{error.value.message}{error.value.detail}", "a name that the caller did not give"
    assert not at.engine.groups.index.by_name
    for topic, principal in (("team.t", reading), ("nick", narrow)):
        assert len((await at.consume("team.g", topic, principal=principal)).messages) == 10
    assert await at.ack(2, "team.g", "nick", principal=narrow) == 2


@in_fake_time
async def test_acks_are_audited() -> None:
    seen: list[tuple[str, Any, str, bool]] = []

    def observe(observation: Observation) -> Any:
        def end(error: BaseException | None) -> None:
            seen.append((observation.name, dict(observation.facts), observation.principal.key_id, error is None))

        return end

    at = Consuming(Observers(observe))
    at.routed()
    who = Principal("user:s", frozenset({Scope.READ}), None, Role.SERVICE)
    await at.ack(5, principal=who)
    await refused(Reason.INVALID_REQUEST, at.ack(50, principal=who))
    facts = {"topic": "t", "group": "g", "partition": 0, "upto_offset": 5, "acknowledged_offset": 5}
    assert seen[0] == ("topic.ack", facts, "user:s", True)
    assert (seen[1][1]["upto_offset"], seen[1][3]) == (50, False)
