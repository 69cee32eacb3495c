"""Connections to the members of an etcd: whichever answers."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc
from etcd3aio import EtcdConnectionError, EtcdError, EtcdPermissionDeniedError, EtcdUnauthenticatedError
from etcd3aio._protobuf import WatchStub
from etcd3aio.auth import AuthService
from etcd3aio.kv import KVService
from etcd3aio.lease import LeaseService

from topics_cluster.coordinator import CoordinatorError, CoordinatorRefusedError

T = TypeVar("T")

_OPTIONS: Final = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),  # the time for a connection too
    ("grpc.max_reconnect_backoff_ms", 1_000),
)
_REFUSALS: Final = (
    grpc.StatusCode.INVALID_ARGUMENT,  # no user, or a wrong password
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
)


class Member:
    """One member. Its connection is made with the first call, and again whenever it is lost."""

    def __init__(self, address: str) -> None:
        """Raises CoordinatorRefusedError if a certificate can't be read."""
        self.address: Final = address
        self.users = 0
        """The calls that are under way at it."""
        self._certificates = _certificates()
        self._channel = _channel(address, self._certificates)
        self.kv: Final = KVService(self._channel, max_attempts=1)
        self.lease: Final = LeaseService(self._channel, max_attempts=1)
        self._auth = AuthService(self._channel, max_attempts=1)
        self._watch = WatchStub(self._channel)
        self._token: str | None = None

    @property
    def is_outdated(self) -> bool:
        """Return whether its connection is of other certificates than are in the files now."""
        with contextlib.suppress(CoordinatorRefusedError):
            return self._certificates != _certificates()
        return False

    def watch(self, requests: Any) -> Any:
        """Return the stream of answers to the requests for watches. It ends when the member has no leader any more."""
        metadata = [("hasleader", "true"), *([("token", self._token)] if self._token else [])]
        return self._watch.Watch(requests, metadata=metadata)

    async def authenticate(self, seconds: float, *, anew: bool = False) -> None:
        """Log in as the user of ETCDCTL_USER, if there is one."""
        user, _, password = os.environ.get("ETCDCTL_USER", "").partition(":")
        if user and (anew or self._token is None):
            password = password or _password()
            self._token = (await self._auth.authenticate(user, password, timeout=seconds)).token
            self.kv.set_token(self._token)
            self.lease.set_token(self._token)

    async def close(self) -> None:
        """End its connection."""
        await self._channel.close()


class Members:
    """The members, of which one is asked at a time: the next one when it does not answer.

    The certificate of a private authority, a certificate and key of one's own and a user come from the variables of
    etcd's own client: ETCDCTL_CACERT, ETCDCTL_CERT, ETCDCTL_KEY, ETCDCTL_USER (name:password) or ETCDCTL_PASSWORD. The
    password can also be in the file ETCDCTL_PASSWORD_FILE. Files are read again when a member does not answer, or does
    not know the user any more.
    """

    def __init__(self, addresses: Sequence[str], request_seconds: float) -> None:
        """Connects with the first call. Raises ValueError without an address."""
        if not addresses:
            raise ValueError("no member of etcd is named")
        self._addresses = list(addresses)
        self._request_seconds = request_seconds
        self._members: dict[str, Member] = {}
        self._turn = 0

    @property
    def current(self) -> Member:
        """The member that is asked."""
        address = self._addresses[self._turn]
        if address not in self._members:
            self._members[address] = Member(address)
        return self._members[address]

    async def ask(self, call: Callable[[Member, float], Awaitable[T]], seconds: float | None = None) -> T:
        """Return what the call returns, which gets a member and the seconds that it may take.

        A call that a member did not take is repeated at the others; it may have been carried out all the same. Raises
        CoordinatorError.
        """
        within = min(seconds or self._request_seconds, self._request_seconds)
        last: Exception | None = None
        for _ in self._addresses:
            async with self._using(self.current) as member:
                try:
                    async with asyncio.timeout(within):
                        return await _as_user(member, call, within)
                except (EtcdError, grpc.RpcError, TimeoutError) as error:
                    last = error
                    self.skip(member)
                    if not isinstance(error, EtcdConnectionError):
                        break
        assert last is not None
        raise failure(member, last) from last

    async def follow(self, requests: AsyncIterator[Any], changed: Callable[[], None]) -> None:
        """Watch as the requests say, and call back when the watch begins and at each change. Returns, or raises
        CoordinatorError, when it ends; the next one is at another member."""
        async with self._using(self.current) as member:
            stream = member.watch(requests)
            try:
                async for answer in stream:
                    changed()
                    if answer.canceled:
                        return
            except grpc.RpcError as error:
                raise failure(member, error) from error
            finally:
                stream.cancel()
                self.skip(member)

    def skip(self, member: Member) -> None:
        """Ask another one from now on, if it is this one's turn, and connect again if its certificates have changed."""
        address = member.address
        if address == self._addresses[self._turn]:
            self._turn = (self._turn + 1) % len(self._addresses)
        if member.is_outdated and self._members.get(address) is member:
            del self._members[address]

    @contextlib.asynccontextmanager
    async def _using(self, member: Member) -> AsyncIterator[Member]:
        """Hold the connection; the last to leave one that was replaced ends it."""
        member.users += 1
        try:
            yield member
        finally:
            member.users -= 1
            if not member.users and self._members.get(member.address) is not member:
                await member.close()

    async def close(self) -> None:
        """End all connections."""
        for member in self._members.values():
            await member.close()


def failure(member: Member, error: Exception) -> CoordinatorError:
    """Return the error of a member as one of the coordinator."""
    refused = isinstance(error, EtcdUnauthenticatedError | EtcdPermissionDeniedError)
    if isinstance(error, grpc.aio.AioRpcError):
        text = f"{error.code().name}: {error.details()}"
        refused = error.code() in _REFUSALS
    else:
        text = str(error) or "no answer in time"
    return (CoordinatorRefusedError if refused else CoordinatorError)(f"etcd {member.address}: {text}")


async def _as_user(member: Member, call: Callable[[Member, float], Awaitable[T]], seconds: float) -> T:
    await member.authenticate(seconds)
    try:
        return await call(member, seconds)
    except EtcdUnauthenticatedError:  # the token has ended
        await member.authenticate(seconds, anew=True)
        return await call(member, seconds)


def _certificates() -> tuple[bytes | None, bytes | None, bytes | None]:
    """The contents of the files of the authority, of the certificate and of its key."""
    return _content("ETCDCTL_CACERT"), _content("ETCDCTL_CERT"), _content("ETCDCTL_KEY")


def _channel(address: str, certificates: tuple[bytes | None, bytes | None, bytes | None]) -> grpc.aio.Channel:
    authority, certificate, key = certificates
    target = f"dns:///{address}"
    if authority is None and certificate is None:
        return grpc.aio.insecure_channel(target, options=_OPTIONS)
    credentials = grpc.ssl_channel_credentials(authority, key, certificate)
    return grpc.aio.secure_channel(target, credentials, options=_OPTIONS)


def _password() -> str:
    content = _content("ETCDCTL_PASSWORD_FILE")
    return (
        os.environ.get("ETCDCTL_PASSWORD", "") if content is None else content.decode(errors="replace").rstrip("\r\n")
    )


def _content(variable: str) -> bytes | None:
    name = os.environ.get(variable)
    if not name:
        return None
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise CoordinatorRefusedError(f"{variable}: {error}") from error
