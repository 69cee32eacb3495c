"""What only the client for asyncio can do wrong: loops, tasks, cancellation, things left behind."""

import asyncio
import gc
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from support.complaints import collect_complaints
from support.server import ServerProcess
from topics_client import AsyncReadStream, AsyncTopicsClient, Retry, TopicsError


@pytest.fixture
async def client(shared: ServerProcess) -> AsyncIterator[AsyncTopicsClient]:
    """A client; nothing is left in its loop when it is closed."""
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    loop.slow_callback_duration = 60  # a busy machine is no complaint
    complaints = collect_complaints(loop)
    async with AsyncTopicsClient(shared.grpc_target, retry=Retry(seconds=2)) as client:
        yield client
        await _calls(client, 0)
    gc.collect()
    await asyncio.sleep(0)
    assert not complaints


async def _calls(client: AsyncTopicsClient, number: int) -> None:
    """Wait until the server has the given number of other calls open."""
    async with asyncio.timeout(20):
        while f"topics_grpc_calls_in_flight {number + 1}" not in (await client.metrics()).replace(".0\n", "\n"):
            await asyncio.sleep(0.01)


async def test_many_calls_at_the_same_time(client: AsyncTopicsClient, name: str) -> None:
    given = await asyncio.gather(*(client.append(name, i) for i in range(500)))
    assert sorted(each.first_seq for each in given) == list(range(1, 501))

    async def read(i: int) -> list[Any]:
        return [record.value async for record in client.read(name, i)]

    async def watch(i: int) -> int:
        async with client.watch({name: i}) as stream:
            async for record in stream:
                if record.seq == 500:
                    return i
        raise AssertionError

    found = await asyncio.gather(*map(read, range(0, 500, 10)), *map(watch, range(0, 499, 10)))
    assert [len(each) for each in found[:50]] == [500 - i for i in range(0, 500, 10)]
    assert found[50:] == list(range(0, 499, 10))


async def test_a_task_that_is_cancelled_ends_at_once_and_leaves_no_call(client: AsyncTopicsClient, name: str) -> None:
    await client.append(name, 1)

    async def read() -> None:
        async for _ in client.read(name, follow=True):
            pass

    async def watch() -> None:
        async for _ in client.watch(name).batches():
            pass

    async def wait() -> None:
        await client.diff(name, 1, wait_ms=20_000)

    tasks = [asyncio.create_task(work()) for work in (read, watch, wait)]
    await _calls(client, 3)
    for task in tasks:
        task.cancel()
    done, left = await asyncio.wait(tasks, timeout=10)
    assert not left
    assert all(task.cancelled() for task in done)
    await _calls(client, 0)
    for work in (read, watch, wait):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(work(), 0.1)


async def test_cancelled_while_it_waits_to_try_again() -> None:
    async with AsyncTopicsClient("127.0.0.1:1", retry=Retry(seconds=600, first_pause=300)) as client:
        for work in (client.get_topic("t"), anext(aiter(client.read("t"))), anext(aiter(client.watch("t")))):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(work, 0.2)


async def test_to_break_off_ends_the_call(client: AsyncTopicsClient, name: str) -> None:
    await client.append_many(name, range(5000))
    for stream in (client.read(name, follow=True), client.watch(name)):
        async for _ in stream:
            break
        await _calls(client, 0)
        async with stream:
            iterator = aiter(stream)
            await anext(iterator)
        await _calls(client, 0)

    async def fails(stream: Any) -> None:
        async for record in stream:
            _ = 1 // (record.seq - 1)

    for stream in (client.read(name, follow=True), client.watch(name)):
        with pytest.raises(ZeroDivisionError):
            await fails(stream)


async def test_close_ends_who_waits_in_another_task(client: AsyncTopicsClient, name: str) -> None:
    await client.append(name, 1)

    async def follow(stream: Any) -> list[int]:
        return [record.seq async for record in stream]

    for stream in (client.read(name, follow=True), client.watch(name)):
        task = asyncio.create_task(follow(stream))
        while (stream.position if isinstance(stream, AsyncReadStream) else stream.cursor.get(name)) != 1:
            await asyncio.sleep(0.01)
        stream.close()
        assert await asyncio.wait_for(task, 3) == [1]


async def test_to_close_the_client_ends_its_calls_with_an_error(shared: ServerProcess, name: str) -> None:
    client = AsyncTopicsClient(shared.grpc_target)
    await client.append(name, 1)
    records = aiter(client.read(name, follow=True))
    await anext(records)
    waiting = [asyncio.ensure_future(anext(records)), asyncio.ensure_future(client.diff(name, 1, wait_ms=20_000))]
    await _calls(client, 2)
    await client.close()
    for each in waiting:
        with pytest.raises(TopicsError, match="the client is closed"):
            await asyncio.wait_for(each, 3)
    with pytest.raises(TopicsError, match="the client is closed"):
        await client.append(name, 2)


def test_a_second_loop_is_told_to_use_a_client_of_its_own(shared: ServerProcess, name: str) -> None:
    client = AsyncTopicsClient(shared.grpc_target)
    stream = client.watch(name)  # outside of any loop

    async def first() -> int:
        await client.append(name, 1)
        return (await anext(aiter(stream))).seq

    assert asyncio.run(first()) == 1

    async def again() -> None:
        with pytest.raises(RuntimeError, match="make one in each loop"):
            await client.append(name, 2)
        with pytest.raises(RuntimeError, match="make one in each loop"):
            await anext(aiter(client.read(name)))

    asyncio.run(again())


def test_a_program_leaves_nothing_behind(shared: ServerProcess, name: str) -> None:
    """In development mode Python warns of everything that was not closed, awaited or retrieved."""
    program = f"""
    import asyncio
    from topics_client import AsyncReadStream, AsyncTopicsClient, TopicsClient, TopicsError

    async def main():
        asyncio.get_running_loop().slow_callback_duration = 30
        async with AsyncTopicsClient("{shared.grpc_target}") as client:
            await client.append_many("{name}", range(3000))
            async for record in client.read("{name}", follow=True):
                if record.seq == 7:
                    break
            iterator = aiter(client.watch("{name}"))
            await anext(iterator)
            task = asyncio.create_task(anext(aiter(client.read("{name}", 3000, follow=True))))
            await asyncio.sleep(0.1)
            task.cancel()
            try:
                await client.get_topic("none")
            except TopicsError as error:
                print(error.reason)

    asyncio.run(main())
    with TopicsClient("{shared.grpc_target}") as client:
        for record in client.read("{name}", follow=True):
            break
        iterator = iter(client.watch("{name}"))
        next(iterator)
    print("done")
    """
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", textwrap.dedent(program)],
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "topic_not_found\ndone\n", "")


async def test_without_a_server_nothing_hangs() -> None:
    client = AsyncTopicsClient("127.0.0.1:1", retry=Retry(seconds=0))
    assert await client.ready() is False
    with suppress(TopicsError):
        await client.metrics()
    await client.close()
    await client.close()
