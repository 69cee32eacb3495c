"""Deliveries: waiting for them in threads, in event loops and by callback, and receipts that are settled in parts."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from support.waiting import poll
from topics_client.errors import ConflictError, TopicsError, UnavailableError
from topics_client.producer.delivery import Delivery, Receipt, enter_delivering_thread

_FULL = ConflictError("topic_full", "no room", {"topic": "t"})


def _settle(heard: list[Callable[[], None]]) -> None:
    for then in heard:
        then()


def _deliveries(receipt: Receipt, count: int) -> list[Delivery]:
    return [Delivery(receipt, index) for index in range(count)]


def test_a_batch_that_is_stored_gives_each_record_its_seq() -> None:
    receipt = Receipt()
    first, second = _deliveries(receipt, 2)
    assert (first.done(), repr(first)) == (False, "<Delivery pending>")
    assert receipt.settle(10) == []
    assert (first.done(), first.result(), second.result(), second.exception()) == (True, 10, 11, None)
    assert repr(second) == "<Delivery seq 11>"
    assert not receipt.seen


def test_a_batch_that_failed_fails_each_record_and_looking_is_noted() -> None:
    receipt = Receipt()
    first, second = _deliveries(receipt, 2)
    receipt.settle(_FULL)
    assert repr(first) == "<Delivery failed: topic_full: no room>"
    assert not receipt.seen
    with pytest.raises(ConflictError, match=r"^topic_full: no room$") as raised:
        first.result()
    assert (raised.value.reason, raised.value.detail) == ("topic_full", {"topic": "t"})
    assert receipt.seen
    with pytest.raises(ConflictError) as again:
        second.result()
    assert again.value is not raised.value, "each has a traceback of its own"
    assert second.exception() is _FULL


def test_a_batch_can_be_settled_in_parts() -> None:
    receipt = Receipt()
    deliveries, told = _deliveries(receipt, 4), list[int]()
    for index, delivery in enumerate(deliveries):
        delivery.add_done_callback(lambda _, index=index: told.append(index))  # type: ignore[misc]
    _settle(receipt.settle_part(0, 2, 4, 7))
    assert [delivery.done() for delivery in deliveries] == [True, True, False, False]
    assert told == [0, 1]
    _settle(receipt.settle_part(2, 1, 4, _FULL))
    _settle(receipt.settle_part(3, 1, 4, 9))
    assert [None if d.exception() else d.result() for d in deliveries] == [7, 8, None, 9]
    assert told == [0, 1, 2, 3]


def test_threads_wait_and_can_lose_patience() -> None:
    receipt = Receipt()
    first, second = _deliveries(receipt, 2)
    with pytest.raises(TimeoutError, match=r"within 0\.01 s"):
        first.result(timeout=0.01)
    with pytest.raises(TimeoutError):
        first.exception(timeout=0)
    results = list[int]()
    waiting = [threading.Thread(target=lambda each=each: results.append(each.result(10))) for each in (first, second)]  # type: ignore[misc]
    for thread in waiting:
        thread.start()
    _settle(receipt.settle(5))
    for thread in waiting:
        thread.join(10)
    assert sorted(results) == [5, 6]


def test_callbacks_come_with_the_outcome_in_order_or_at_once() -> None:
    receipt, told = Receipt(), list[tuple[int, int]]()
    first, second = _deliveries(receipt, 2)
    second.add_done_callback(lambda done: told.append((2, done.result())))
    first.add_done_callback(lambda done: told.append((1, done.result())))
    _settle(receipt.settle(1))
    assert told == [(2, 2), (1, 1)]
    first.add_done_callback(lambda done: told.append((3, done.result())))
    assert told[2:] == [(3, 1)]


def test_a_failure_is_seen_by_a_callback_and_by_who_waits_but_not_by_who_has_given_up() -> None:
    with_callback, awaited, given_up = Receipt(), Receipt(), Receipt()
    Delivery(with_callback, 0).add_done_callback(lambda _: None)
    waiting = threading.Thread(target=Delivery(awaited, 0).exception, args=(10,))
    waiting.start()
    poll(lambda: awaited._waiting, 20)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            Delivery(given_up, 0).result(0)
    assert not given_up._waiting, "nothing gathers where somebody looks again and again"
    for receipt in (with_callback, awaited, given_up):
        _settle(receipt.settle(_FULL))
    assert [receipt.seen for receipt in (with_callback, awaited, given_up)] == [True, True, False]
    waiting.join(10)


def test_a_callback_does_not_wait_for_itself() -> None:
    caught = list[BaseException]()

    def deliver() -> None:
        enter_delivering_thread()
        pending = Delivery(Receipt(), 0)
        for wait in (pending.result, pending.exception):
            try:
                wait()
            except RuntimeError as error:
                caught.append(error)

    thread = threading.Thread(target=deliver)
    thread.start()
    thread.join(10)
    assert [str(error) for error in caught] == ["a callback of a delivery must not wait for a delivery"] * 2


async def test_any_event_loop_can_await_them() -> None:
    receipt = Receipt()
    first, second = _deliveries(receipt, 2)
    mine = asyncio.ensure_future(_seq(first))
    theirs = asyncio.create_task(asyncio.to_thread(asyncio.run, _seq(second)))
    while len(receipt._waiting) < 2:  # both are waiting
        await asyncio.sleep(0.001)
    await asyncio.to_thread(_settle, receipt.settle(5))
    assert (await mine, await theirs) == (5, 6)
    assert await first == 5, "once it is done there is nothing to wait for"


async def test_a_failed_one_raises_where_it_is_awaited() -> None:
    receipt = Receipt()
    (delivery,) = _deliveries(receipt, 1)
    waiting = asyncio.ensure_future(_seq(delivery))
    await asyncio.sleep(0)
    _settle(receipt.settle(_FULL))
    with pytest.raises(ConflictError):
        await waiting
    with pytest.raises(ConflictError):
        await delivery
    assert receipt.seen


async def test_whoever_gives_up_awaiting_harms_nobody() -> None:
    receipt = Receipt()
    (delivery,) = _deliveries(receipt, 1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await delivery
    _settle(receipt.settle(5))
    assert await delivery == 5


def test_an_event_loop_that_is_gone_harms_nobody() -> None:
    receipt = Receipt()
    (delivery,) = _deliveries(receipt, 1)

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await delivery

    asyncio.run(give_up())
    _settle(receipt.settle(5))
    assert delivery.result() == 5


def test_in_the_child_of_a_fork_what_is_pending_has_failed() -> None:
    error: TopicsError = UnavailableError("forked", "forked")
    pending, partly, stored = Receipt(), Receipt(), Receipt()
    pending._lock.acquire()  # by a thread that the child does not have
    partly.settle_part(0, 1, 2, 3)
    stored.settle(1)
    for receipt in (pending, partly, stored):
        receipt.abandon(error)
    assert Delivery(pending, 0).exception() is error
    assert (Delivery(partly, 0).result(), Delivery(partly, 1).exception()) == (3, error)
    assert Delivery(stored, 0).result() == 1


async def _seq(delivery: Delivery) -> int:
    return await delivery
