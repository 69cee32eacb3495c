"""Checks of passwords: on threads, remembered for some minutes, and bounded where somebody guesses."""

import asyncio
import contextlib
import ipaddress
import logging
import os
import secrets
import sys
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import blake2b
from typing import Final, NamedTuple

from topics_net.rate_limited_logger import RateLimitedLogger
from topics_service.api.access.auth import Principal
from topics_service.api.access.users import MAX_NAME_BYTES, UserRow, Users
from topics_service.api.access.verifiers import Verifier, matches, may_be_password, verifier
from topics_service.engine.errors import Reason, TopicsError

FAILURES: Final = "password_failures_per_minute"
"""`detail.limit` of a refusal after too many wrong passwords."""
MAX_FAILURES: Final = 20
"""Failures of one address and user within a minute."""

_WINDOW_SECONDS: Final = 60.0
_MAX_ENTRIES: Final = 10_000
_REMEMBER_SECONDS: Final = 300.0
_THREADS: Final = 2
_NICE: Final = 10
_MAX_RUNNING: Final = 64
_MAX_RUNNING_PER_ADDRESS: Final = 32

_NOBODY: Final = Verifier(f"SCRYPT$14,8,1:{'A' * 22}==${'A' * 43}=", "", "")
"""A verifier that no password matches, for users that do not exist: a check of one takes as long as any other."""


class UnverifiedPasswordError(Exception):
    """A user name and password that must be checked on a thread (`Passwords.verify`) before the call can be served."""

    def __init__(self, name: str, password: bytes) -> None:
        super().__init__("a password is to be checked")
        self.name = name
        self.password = password


class Failures:
    """Counts wrong passwords by address and user, each pair for a minute from its first failure on.

    It has at most 10,000 pairs and forgets the oldest one beyond.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()
        self._names: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._counts)

    def concern(self, name: str) -> bool:
        """True if there are failures of the user, from any address."""
        return name in self._names

    def check(self, address: str, name: str) -> None:
        """Raise `throttled`, with the time until then, if the pair has failed too often."""
        self._expire()
        count, end = self._counts.get((address, name), (0, 0.0))
        if count >= MAX_FAILURES:
            raise _throttled("too many wrong passwords for this user from this address", FAILURES, MAX_FAILURES,
                             seconds=end - self._clock())  # fmt: skip

    def add(self, address: str, name: str) -> None:
        """Count a failure."""
        pair = address, name
        count, end = self._counts.get(pair, (0, 0.0))
        if not count:
            if len(self._counts) >= _MAX_ENTRIES:
                self._forget(next(iter(self._counts)))
            self._names[name] += 1
            end = self._clock() + _WINDOW_SECONDS
        self._counts[pair] = count + 1, end

    def take_back(self, address: str, name: str) -> None:
        """Undo an `add`."""
        pair = address, name
        count, end = self._counts.get(pair, (0, 0.0))
        if count > 1:
            self._counts[pair] = count - 1, end
        elif count:
            self._forget(pair)

    def _expire(self) -> None:
        """Forget the pairs whose minute is over. They are in the order of their first failures."""
        now = self._clock()
        while self._counts:
            pair, (_, end) = next(iter(self._counts.items()))
            if end > now:
                return
            self._forget(pair)

    def _forget(self, pair: tuple[str, str]) -> None:
        del self._counts[pair]
        self._names[pair[1]] -= 1
        if not self._names[pair[1]]:
            del self._names[pair[1]]


class _Remembered(NamedTuple):
    """A password that was right, as long as its user is the same."""

    credential: str
    until: float


class Passwords:
    """Checks passwords of `users`: one that was right lately at once, others by scrypt on one of two threads.

    Of those that were right it keeps a keyed hash until they are not used for some minutes, at most 10,000. At most 64
    checks run or wait.
    """

    def __init__(
        self,
        users: Users,
        *,
        clock: Callable[[], float] = time.monotonic,
        matches: Callable[[bytes, Verifier], bool] = matches,
    ) -> None:
        """`matches` compares a password with a verifier, on a thread."""
        self._users = users
        self._clock = clock
        self._matches = matches
        self._key = secrets.token_bytes(32)
        self._remembered: OrderedDict[bytes, _Remembered] = OrderedDict()
        self._running: dict[tuple[str, bytes], asyncio.Future[bool]] = {}
        self._log = RateLimitedLogger(logging.getLogger("topics.server"))
        self._per_address: Counter[str] = Counter()
        self._threads: ThreadPoolExecutor | None = None
        self.failures = Failures(clock)

    def __len__(self) -> int:
        """Passwords that are remembered."""
        return len(self._remembered)

    def find(self, name: bytes, password: bytes) -> Principal | None:
        """Find the user with this password; None for a name or password that no user can have.

        Raises UnverifiedPasswordError if it takes a thread to know.
        """
        if not len(self._users) or not may_be_password(password) or len(name) > MAX_NAME_BYTES:
            return None
        try:
            text = name.decode()
        except UnicodeDecodeError:
            return None
        if not self.failures.concern(text):
            found = self._find_remembered(self._digest(text, password), text)
            if found is not None:
                return found
        raise UnverifiedPasswordError(text, password)

    async def verify(self, name: str, password: bytes, peer: str) -> Principal | None:
        """Find the user with this password, None if there is none. `peer` is the address of the client, `host:port`.

        Raises `throttled` after too many failures, and if there are too many checks.
        """
        address = network_of(peer)
        try:
            self.failures.check(address, name)
        except TopicsError:
            self._log.warning(
                "too many wrong passwords for the user %a from %s: further ones are refused", name, address
            )
            raise
        digest = self._digest(name, password)
        found = self._find_remembered(digest, name)
        if found is not None:
            return found
        known = self._users.find(name)
        running = self._running.get((address, digest)) or self._start(address, digest, name, password, known)
        if not await asyncio.shield(running):
            return None
        now = self._users.find(name)
        return now[1] if now is not None and now == known else None

    async def verifier(self, password: str) -> Verifier:
        """Make the verifiers of a new password, on a thread. Raises ValueError as `verifiers.verifier` does."""
        return await asyncio.get_running_loop().run_in_executor(self._pool(), verifier, password)

    def close(self) -> None:
        """End the threads."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    def _start(
        self, address: str, digest: bytes, name: str, password: bytes, known: tuple[UserRow, Principal] | None
    ) -> "asyncio.Future[bool]":
        if len(self._running) >= _MAX_RUNNING or self._per_address[address] >= _MAX_RUNNING_PER_ADDRESS:
            raise _throttled("too many passwords are being checked", "password_checks", _MAX_RUNNING, seconds=1.0)
        kept = _NOBODY if known is None else known[0].verifier
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._pool(), self._matches, password, kept)
        self._running[address, digest] = running
        self._per_address[address] += 1
        self.failures.add(address, name)  # until it is known to be right, so that many at once are counted too
        running.add_done_callback(partial(self._done, address, digest, name, known))
        return running

    def _done(
        self,
        address: str,
        digest: bytes,
        name: str,
        known: tuple[UserRow, Principal] | None,
        running: "asyncio.Future[bool]",
    ) -> None:
        self._running.pop((address, digest), None)
        self._per_address[address] -= 1
        if not self._per_address[address]:
            del self._per_address[address]
        if running.cancelled() or running.exception() is not None or not running.result() or known is None:
            return
        self.failures.take_back(address, name)
        self._remember(digest, known[1].credential)

    def _find_remembered(self, digest: bytes, name: str) -> Principal | None:
        remembered = self._remembered.get(digest)
        if remembered is None:
            return None
        known = self._users.find(name)
        left = remembered.until - self._clock()
        if known is None or known[1].credential != remembered.credential or left <= 0:
            del self._remembered[digest]
            return None
        if left < _REMEMBER_SECONDS / 2:
            self._remember(digest, remembered.credential)
        return known[1]

    def _remember(self, digest: bytes, credential: str) -> None:
        self._remembered.pop(digest, None)
        if len(self._remembered) >= _MAX_ENTRIES:
            self._remembered.popitem(last=False)
        self._remembered[digest] = _Remembered(credential, self._clock() + _REMEMBER_SECONDS)

    def _digest(self, name: str, password: bytes) -> bytes:
        return blake2b(b"%d:%b%b" % (len(name), name.encode(), password), key=self._key, digest_size=32).digest()

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, "passwords", _give_way)
        return self._threads


def _give_way() -> None:
    """Let the event loop have its core first, where there are fewer cores than threads: anybody may send passwords."""
    if sys.platform == "linux":  # where a thread has a priority of its own
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


def network_of(peer: str) -> str:
    """The address of `host:port` for which failures are counted: of IPv6 the first 64 bits."""
    host = peer.rpartition(":")[0].strip("[]")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))


def _throttled(message: str, limit: str, maximum: int, *, seconds: float) -> TopicsError:
    milliseconds = max(1, int(seconds * 1000) + 1)
    detail = {"limit": limit, "max": maximum, "retry_after_ms": milliseconds}
    return TopicsError(Reason.THROTTLED, message, detail, retry_after_ms=milliseconds)
