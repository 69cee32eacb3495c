"""Claims of consumers in fake time: disjoint ranges, acks in any order, ends of claims, moved positions, restarts."""

import asyncio
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.consuming import Consuming, refused
from support.fake_time import in_fake_time, steps
from topics_service.api.sql.requests import ConsumeReply, Gap
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.model import DeleteRequest
from topics_service.engine.offsets.positions import CommitItem, ResetRequest
from topics_service.engine.tables import plans
from topics_service.engine.tables.model import Op


def offsets(reply: ConsumeReply) -> list[int]:
    return [message.offset for message in reply.messages]


def name(reply: ConsumeReply) -> str:
    assert reply.claim is not None
    return reply.claim.claim_id


@in_fake_time
async def test_workers_of_a_group_get_disjoint_ranges() -> None:
    at = Consuming()
    at.routed()
    first, second = await at.claim(limit=4), await at.claim(limit=4)
    assert (offsets(first), offsets(second)) == ([0, 1, 2, 3], [4, 5, 6, 7])
    assert first.claim is not None
    assert (first.claim.from_offset, first.claim.to_offset, first.claim.visibility_seconds) == (0, 3, 60)
    assert (first.next_offset, first.has_more, second.has_more) == (4, True, True)
    last = await at.claim(limit=4)
    assert (offsets(last), last.has_more) == ([8, 9], False)
    none = await at.claim()
    assert (none.messages, none.claim, none.next_offset, none.has_more) == ([], None, 10, False)
    assert offsets(await at.claim("other")) == list(range(10)), "another group"
    assert offsets(await at.consume()) == list(range(10)), "a read without a claim"


@in_fake_time
async def test_the_position_follows_the_lowest_that_is_not_acknowledged() -> None:
    at = Consuming()
    at.routed()
    a, b, c = [await at.claim(limit=3) for _ in range(3)]
    assert await at.ack(None, claim_id=name(c)) == -1
    assert await at.ack(None, claim_id=name(b)) == -1
    assert at.position() is None
    assert await at.ack(1, claim_id=name(a)) == 1, "a part of the range"
    assert at.position() == 2
    assert await at.ack(None, claim_id=name(a)) == 8
    assert at.position() == 9
    assert await at.ack(None, claim_id=name(b)) == 8, "again"
    assert not len(at.api.claims), "nothing is left to remember"
    assert await at.ack(None, claim_id=name(b)) == 8


@in_fake_time
async def test_what_is_not_acknowledged_in_time_is_handed_out_again() -> None:
    at = Consuming()
    at.routed()
    a, b = await at.claim(limit=3, seconds=10), await at.claim(limit=3, seconds=20)
    await at.ack(0, claim_id=name(a))
    await asyncio.sleep(9)
    assert offsets(await at.claim(limit=1)) == [6]
    await asyncio.sleep(1)
    again = await at.claim(limit=5)
    assert offsets(again) == [1, 2], "what is left of the claim, by itself"
    error = await refused(Reason.CLAIM_EXPIRED, at.ack(None, claim_id=name(a)))
    assert error.detail == {"claim_id": name(a)}
    assert at.position() == 1
    await asyncio.sleep(10)
    assert await at.ack(None, claim_id=name(b)) == 0, "its time is over, but nobody else has its messages"
    assert await at.ack(None, claim_id=name(again)) == 5
    assert offsets(await at.claim(limit=5)) == [7, 8, 9]


@in_fake_time
async def test_a_claim_of_before_a_restart_is_handed_out_again_or_acknowledged() -> None:
    at = Consuming()
    at.routed()
    a, b = await at.claim(limit=3), await at.claim(limit=3)
    at.restart()
    at.serve()
    assert await at.ack(None, claim_id=name(b)) == -1, "out of order, and known again"
    assert offsets(await at.claim(limit=10)) == [0, 1, 2]
    await refused(Reason.CLAIM_EXPIRED, at.ack(None, claim_id=name(a)))
    assert offsets(await at.claim()) == [6, 7, 8, 9]


@in_fake_time
async def test_an_ack_without_a_claim_covers_no_range_of_another_worker() -> None:
    at = Consuming()
    at.routed()
    await at.claim(limit=3, seconds=30)
    await at.claim(limit=3, seconds=30)
    assert await at.ack(5) == -1, "the range that holds the offset, and not the one before it"
    assert await at.ack(8) == -1, "what was never claimed, from its start on"
    assert offsets(await at.claim()) == [9]
    assert await at.ack(1) == 1
    assert await at.ack(2) == 8
    await at.claim(limit=3, seconds=30)


@in_fake_time
async def test_readers_without_claims_go_on_once_claims_are_over() -> None:
    at = Consuming()
    at.routed()
    await at.claim(limit=3, seconds=30)
    assert await at.ack(7) == -1
    await asyncio.sleep(60)
    assert await at.ack(5) == -1, "a worker may still come with what it has done"
    await asyncio.sleep(31)
    assert await at.ack(8) == 8


@in_fake_time
async def test_waiting_workers_are_served_in_their_order() -> None:
    at = Consuming()
    at.routed(count=0)
    calls = []
    for _ in range(3):
        calls.append(asyncio.create_task(at.claim(limit=2, timeout_seconds=50)))
        await asyncio.sleep(1)
    at.insert(1, 2, 3)
    await steps(10)
    assert [call.done() for call in calls] == [True, True, False]
    assert [offsets(call.result()) for call in calls[:2]] == [[0, 1], [2]]
    late = asyncio.create_task(at.claim(limit=2, timeout_seconds=50))
    assert offsets(await at.claim(limit=2)) == [], "one that does not wait overtakes nobody"
    at.insert(4)
    await steps(10)
    assert offsets(calls[2].result()) == [3]
    assert not late.done()
    await asyncio.sleep(57)
    assert not late.done() or offsets(late.result()) in ([], [0, 1])
    late.cancel()
    await asyncio.gather(late, return_exceptions=True)


@in_fake_time
async def test_the_end_of_a_claim_wakes_a_waiting_worker() -> None:
    at = Consuming()
    at.routed(count=2)
    loop = asyncio.get_running_loop()
    await at.claim(seconds=7)
    begun = loop.time()
    again = await at.claim(timeout_seconds=20)
    assert offsets(again) == [0, 1]
    assert loop.time() - begun == pytest.approx(7)
    assert at.api.claims.statistics.expired_claims == 1
    assert at.api.claims.statistics.open_claims == 1
    begun = loop.time()
    assert offsets(await at.claim(timeout_seconds=5)) == []
    assert loop.time() - begun == pytest.approx(5)
    assert not at.engine.catalog.topics["t"].log._parked
    assert not at.waiting


@in_fake_time
async def test_a_worker_that_leaves_gives_back_what_it_got() -> None:
    at = Consuming()
    at.routed(count=0)
    call = asyncio.create_task(at.claim(timeout_seconds=50))
    other = asyncio.create_task(at.claim(timeout_seconds=50))
    await asyncio.sleep(1)
    shared = next(iter(at.api.claims._shared.values()))
    served = next(iter(shared._claimants)).served
    at.insert(1, 2)
    while not served.is_set():
        await asyncio.sleep(0)
    call.cancel()  # in the same step as its claim
    await asyncio.gather(call, return_exceptions=True)
    assert call.cancelled()
    assert offsets(await other) == [0, 1]
    assert at.api.claims.statistics.open_claims == 1


@in_fake_time
async def test_positions_of_other_protocols_count() -> None:
    at = Consuming()
    at.routed()
    a = await at.claim(limit=3)
    b = await at.claim(limit=3)
    at.engine.groups.commit("g", [CommitItem("t", 0, 5)])
    assert offsets(await at.claim(limit=2)) == [6, 7]
    assert await at.ack(None, claim_id=name(a)) == 4, "what was committed beyond it stays"
    assert await at.ack(None, claim_id=name(b)) == 5
    at.engine.groups.reset(ResetRequest(group="g", to="earliest"))
    again = await at.claim()
    assert offsets(again) == [0, 1, 2, 3, 4, 5], "from the start, up to what a worker holds"
    at.engine.groups.delete("g")
    assert offsets(await at.claim()) == [8, 9]
    assert await at.ack(None, claim_id=name(again)) == 5


@in_fake_time
async def test_an_ack_does_not_undo_a_move_back() -> None:
    at = Consuming()
    at.routed()
    a = await at.claim(limit=5)
    b = await at.claim(limit=5)
    await at.ack(None, claim_id=name(a))
    at.engine.groups.reset(ResetRequest(group="g", to="earliest"))
    assert await at.ack(None, claim_id=name(b)) == -1
    assert at.position() == 0
    again = await at.claim()
    assert offsets(again) == [0, 1, 2, 3, 4]
    assert await at.ack(None, claim_id=name(again)) == 9


@in_fake_time
async def test_gaps_and_deleted_records_in_a_range() -> None:
    at = Consuming()
    at.routed(count=6, cap_records=6)
    a = await at.claim(limit=3, seconds=10)
    b = await at.claim(limit=3, seconds=10)
    at.insert(10, 11)  # evicts 0 and 1
    await asyncio.sleep(10)
    again = await at.claim(limit=10)
    assert (again.gap, offsets(again)) == (Gap(from_offset=0, to_offset=1, reason="cap"), [2])
    at.engine.delete_records(DeleteRequest(topic="t", before_seq=7))
    rest = await at.claim(limit=1)
    assert (rest.gap, offsets(rest)) == (None, [6]), "deleted ones are passed in silence"
    assert await at.ack(None, claim_id=name(again)) == 5
    assert await at.ack(None, claim_id=name(a)) == 5
    assert await at.ack(None, claim_id=name(b)) == 5


@in_fake_time
async def test_a_gap_alone_is_claimed_so_that_the_position_goes_on() -> None:
    at = Consuming()
    at.routed(count=3, cap_records=4)
    await at.ack(0)
    at.insert(*range(10, 14))
    at.engine.delete_records(DeleteRequest(topic="t", before_seq=7))
    at.define(plans.ClearTopic("t"))
    page = await at.claim()
    assert (page.gap, page.messages) == (Gap(from_offset=1, to_offset=6, reason="cap"), [])
    assert await at.ack(None, claim_id=name(page)) == 6


@in_fake_time
async def test_retention_waits_for_the_lowest_that_is_not_acknowledged() -> None:
    at = Consuming()
    at.routed(count=4, cap_records=4, retain_until_acked_by=("g",))
    a, b = await at.claim(limit=2), await at.claim(limit=2)
    await at.ack(None, claim_id=name(b))
    log = at.engine.catalog.topics["t"].log
    assert log.hold == 0
    await at.ack(None, claim_id=name(a))
    assert log.hold == 4


@in_fake_time
async def test_latest_begins_at_the_head_once_and_for_all() -> None:
    at = Consuming()
    at.routed()
    assert offsets(await at.claim(start="latest")) == []
    assert at.position() == 10
    at.insert(10, 11)
    a = await at.claim(start="latest", limit=1)
    b = await at.claim("early", start="earliest", limit=1)
    assert (offsets(a), offsets(b)) == ([10], [0])
    assert offsets(await at.claim("early", start="latest", limit=1)) == [1], "others have begun already"


@in_fake_time
async def test_open_claims_have_a_bound() -> None:
    at = Consuming()
    at.routed()
    at.engine.limits = Limits(max_open_claims=2)
    a = await at.claim(limit=1, seconds=10)
    await at.claim(limit=1, seconds=10)
    error = await refused(Reason.THROTTLED, at.claim())
    assert error.detail == {"limit": "max_open_claims", "max": 2}
    assert offsets(await at.claim("other")) == list(range(10))
    await at.ack(None, claim_id=name(a))
    assert offsets(await at.claim(limit=1)) == [2]
    await refused(Reason.THROTTLED, at.claim())
    await asyncio.sleep(10)
    assert offsets(await at.claim()) == [1]


@in_fake_time
async def test_partitions_with_claims_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics_service.api.sql.claims._MAX_PARTITIONS", 2)
    at = Consuming()
    at.routed()
    await at.claim("a", limit=1, seconds=10)
    await at.claim("b", limit=1, seconds=20)
    error = await refused(Reason.THROTTLED, at.claim("c"))
    assert error.detail == {"limit": "max_claimed_partitions", "max": 2}
    await asyncio.sleep(10)
    assert offsets(await at.claim("c", limit=1)) == [0]
    assert len(at.api.claims) == 2


@pytest.mark.parametrize(
    "given",
    [
        {"start": 3},
        {"seconds": 0},
        {"seconds": -1},
        {"seconds": float("nan")},
        {"group": None},
        {"limit": 0},
    ],
    ids=str,
)
def test_bad_claims_are_refused(given: dict[str, Any]) -> None:
    @in_fake_time
    async def run() -> None:
        at = Consuming()
        at.routed()
        await refused(Reason.INVALID_REQUEST, at.claim(**given))
        assert not at.engine.groups.index.by_name
        assert not len(at.api.claims)

    run()


@in_fake_time
async def test_acks_of_what_is_no_claim_are_refused() -> None:
    at = Consuming()
    at.routed()
    at.create("u")
    claim = name(await at.claim(limit=5))
    for bad in ("", "x", "claim_", claim + "0", claim.replace("claim_0", "claim_9"), f"claim_0_{'9' * 30}_{'0' * 24}"):
        await refused(Reason.INVALID_REQUEST, at.ack(None, claim_id=bad))
    await refused(Reason.INVALID_REQUEST, at.ack(None, "other", claim_id=claim))
    await refused(Reason.INVALID_REQUEST, at.ack(None))
    for upto in (5, 9):
        await refused(Reason.INVALID_REQUEST, at.ack(upto, claim_id=claim))
    forged = claim.replace("claim_0_4", "claim_0_99")
    await refused(Reason.CLAIM_EXPIRED, at.ack(None, claim_id=forged))
    assert at.engine.groups.find("other") is None
    assert at.position() is None


@in_fake_time
async def test_a_topic_made_again_has_no_claims_of_the_former() -> None:
    at = Consuming()
    at.routed()
    claim = name(await at.claim(limit=5))
    waiting = asyncio.create_task(at.claim("w", start="latest", timeout_seconds=50))
    await steps(5)
    at.engine.delete_topic("t")
    await refused(Reason.TOPIC_NOT_FOUND, waiting)
    at.create("t")
    at.route("t", Op.INSERT)
    at.insert(*range(20, 30))
    await refused(Reason.INVALID_REQUEST, at.ack(None, claim_id=claim))
    assert offsets(await at.claim(limit=5)) == [0, 1, 2, 3, 4]


@in_fake_time
async def test_a_drain_ends_the_waits() -> None:
    at = Consuming()
    at.routed(count=0)
    calls = [asyncio.create_task(at.claim(timeout_seconds=100)) for _ in range(3)]
    await steps(5)
    at.engine.draining = True
    for event in list(at.waiting):
        event.set()
    assert [offsets(reply) for reply in await asyncio.gather(*calls)] == [[], [], []]


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False))
def test_no_message_is_lost_and_none_is_held_twice(random: Random) -> None:
    """Workers that claim, acknowledge in any order, are slow or vanish, over restarts: the position never passes a
    message that was not acknowledged, and in the end all are."""

    @in_fake_time
    async def run() -> None:
        at = Consuming()
        at.routed(count=0)
        loop = asyncio.get_running_loop()
        acked = set[int]()
        held: dict[str, tuple[set[int], float]] = {}
        written = 0

        async def claim(seconds: int, limit: int) -> bool:
            reply = await at.claim(limit=limit, seconds=seconds)
            if reply.claim is None:
                return False
            got = set(offsets(reply))
            assert got <= set(range(written))
            for others, until in held.values():
                assert until <= loop.time() or not others & got, "held by two at a time"
            held[name(reply)] = got, loop.time() + seconds
            return True

        async def ack(claim_id: str, *, whole: bool) -> None:
            got, _ = held[claim_id]
            upto = None if whole else random.choice(sorted(got))
            done = {offset for offset in got if upto is None or offset <= upto}
            try:
                await at.ack(upto, claim_id=claim_id)
            except TopicsError as error:
                if error.reason is not Reason.CLAIM_EXPIRED:
                    raise
                return
            acked.update(done)
            if whole:
                del held[claim_id]
            else:
                held[claim_id] = got - done, held[claim_id][1]

        for _ in range(40):
            match random.randrange(8):
                case 0 | 1:
                    count = random.randrange(1, 6)
                    at.insert(*range(written, written + count))
                    written += count
                case 2 | 3:
                    await claim(random.choice((5, 20)), random.randrange(1, 5))
                case 4 | 5 if held:
                    claim_id = random.choice(list(held))
                    if held[claim_id][0]:
                        await ack(claim_id, whole=random.random() < 0.7)
                case 6:
                    await asyncio.sleep(random.choice((1, 4, 9)))
                case 7 if random.random() < 0.3:
                    at.restart()
                    at.serve()
                    held = {each: (got, 0.0) for each, (got, _) in held.items()}
            lowest = next(offset for offset in range(written + 1) if offset not in acked)
            assert (at.position() or 0) <= lowest, "the position has passed a message that nobody acknowledged"
        while True:
            for claim_id in list(held):
                if held[claim_id][1] > loop.time():
                    await ack(claim_id, whole=True)
            await asyncio.sleep(20)
            if not await claim(5, 3):
                break
        assert acked == set(range(written))
        assert (at.position() or 0) == written

    run()
