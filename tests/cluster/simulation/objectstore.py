"""A model of an object store: what is there, and what happens to requests on their way to it and back."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Protocol, TypeVar

from topics_cluster.bucket import BucketError, ObjectEntry

T = TypeVar("T")
Made = Callable[[str, bytes], None]

TIMEOUT = 1.0


@dataclass(frozen=True)
class Weather:
    """The probability of each fault, for a life. Times are seconds of virtual time."""

    lost: float = 0.0
    """A request never arrives."""
    unanswered: float = 0.0
    """It arrives, and its answer does not."""
    late: float = 0.0
    """It arrives long after the caller has given up."""
    twice: float = 0.0
    """A proxy sends it again, later."""
    conflict: float = 0.0
    """A create is refused although nothing is there."""
    latest: float = 30.0
    """The longest delay of a late request."""
    slow: float = 0.0
    """Its answer takes almost the whole time that a caller waits."""


CALM = Weather()


class ObjectStore:
    """The objects. `made` is told of each that a create has made."""

    def __init__(self, clock: Callable[[], float], made: Made) -> None:
        self.objects: dict[str, tuple[bytes, float]] = {}
        self._clock = clock
        self._made = made

    def create(self, name: str, data: bytes) -> bool:
        """Put-if-absent."""
        if name in self.objects:
            return False
        self.objects[name] = data, self._clock()
        self._made(name, data)
        return True

    def put(self, name: str, data: bytes) -> None:
        """Put, whatever is there."""
        self.objects[name] = data, self._clock()

    def get(self, name: str) -> bytes | None:
        """The content, if any."""
        found = self.objects.get(name)
        return None if found is None else found[0]

    def list(self, prefix: str, after: str, before: str) -> dict[str, ObjectEntry]:
        """The objects that are there now."""
        names = [
            name for name in self.objects if name.startswith(prefix) and name > after and (not before or name < before)
        ]
        return {name: ObjectEntry(name, len(self.objects[name][0]), self.objects[name][1]) for name in names}

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects."""
        for name in names:
            self.objects.pop(name, None)


class Sleeper(Protocol):
    """A node, as far as its requests know it."""

    is_cut_off: bool
    """Nothing of what it sends arrives."""

    async def awake(self) -> None:
        """Wait until it runs."""
        ...


class NodeBucket:
    """The Bucket of one life of a node. What it has sent arrives also when it is killed."""

    def __init__(self, store: ObjectStore, node: Sleeper, weather: Callable[[], Weather], dice: Random) -> None:
        self._store = store
        self._node = node
        self._weather = weather
        self._dice = dice

    async def create(self, name: str, parts: Sequence[bytes]) -> bool:
        """See Bucket."""
        data = b"".join(parts)
        if self._dice.random() < self._weather().conflict:
            return await self._call(lambda: False)
        return await self._call(lambda: self._store.create(name, data), changes=True)

    async def get(self, name: str) -> bytes | None:
        """See Bucket."""
        return await self._call(lambda: self._store.get(name))

    async def list(self, prefix: str, after: str = "", before: str = "") -> Sequence[ObjectEntry]:
        """See Bucket. Not a moment's: what comes and goes while it is made may be in it or not."""
        first = await self._call(lambda: self._store.list(prefix, after, before))
        last = await self._call(lambda: self._store.list(prefix, after, before))
        sure = first.keys() & last.keys()
        named = [name for name in {**first, **last} if name in sure or self._dice.random() < 0.5]
        return [{**last, **first}[name] for name in sorted(named)]

    async def delete(self, names: Iterable[str]) -> None:
        """See Bucket. Some may go, and others not."""
        every = list(names)
        while every:
            some, every = every[:3], every[3:]
            await self._call(lambda some=some: self._store.delete(some), changes=True)  # type: ignore[misc]

    async def put_file(self, name: str, source: Path) -> None:
        """See Bucket."""
        await self.put(name, source.read_bytes())  # noqa: ASYNC240  # a simulation has one thread

    async def get_file(self, name: str, target: Path) -> bool:
        """See Bucket."""
        content = await self.get(name)
        if content is not None:
            target.write_bytes(content)  # noqa: ASYNC240
        return content is not None

    async def put(self, name: str, data: bytes) -> None:
        """Put, as `put_file` does."""
        await self._call(lambda: self._store.put(name, data), changes=True)

    async def close(self) -> None:
        """See Bucket."""

    async def _call(self, effect: Callable[[], T], *, changes: bool = False) -> T:
        await self._node.awake()
        loop, dice, weather = asyncio.get_running_loop(), self._dice, self._weather()
        answer: asyncio.Future[T] = loop.create_future()
        fate = dice.random()

        def arrive(answered: bool) -> None:
            if self._node.is_cut_off:
                return
            result = effect()
            if answered:
                loop.call_later(back, lambda: None if answer.done() else answer.set_result(result))

        there, back = dice.uniform(0.001, 0.01), dice.uniform(0.001, 0.01)
        if dice.random() < weather.slow:
            back = dice.uniform(0, TIMEOUT)
        if fate < weather.lost:
            pass
        elif fate < weather.lost + weather.unanswered:
            loop.call_later(there, arrive, False)
        elif fate < weather.lost + weather.unanswered + weather.late and changes:
            loop.call_later(TIMEOUT + dice.uniform(0, weather.latest), arrive, False)
        else:
            loop.call_later(there, arrive, True)
            if changes and dice.random() < weather.twice:
                loop.call_later(dice.uniform(0.01, weather.latest), arrive, False)
        try:
            async with asyncio.timeout(TIMEOUT):
                result = await answer
        except TimeoutError:
            await self._node.awake()
            raise BucketError("the store did not answer") from None
        await self._node.awake()
        return result
