"""The calls that protocols make, whether one engine answers them or several."""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from topics_service.api.access.auth import Principal
from topics_service.api.groups import CommitReply, ConsumeReply, ConsumeRequest
from topics_service.api.metrics.collector import Counters
from topics_service.api.observers import Observers
from topics_service.api.scheduling.pressure import Shortage
from topics_service.api.sql import live
from topics_service.api.sql import requests as sql
from topics_service.api.topics import Settable, Submitted
from topics_service.api.watch_sessions import Session
from topics_service.api.watch_stream import SessionStream, WatchStream
from topics_service.api.work import WorkFrame
from topics_service.engine.limits import Limits
from topics_service.engine.model import (
    AppendReply,
    AppendRequest,
    BulkRequest,
    ConfigInput,
    DeleteReply,
    DeleteRequest,
    DeleteTopicReply,
    DiffReply,
    DiffRequest,
    ListTopicsReply,
    ListTopicsRequest,
    PutTopicReply,
    ReadyState,
    TopicState,
)
from topics_service.engine.offsets.positions import (
    CommitItem,
    DeleteGroupReply,
    GroupState,
    ListGroupsReply,
    ListGroupsRequest,
    PositionState,
    ResetRequest,
    Target,
)
from topics_service.engine.queue.jobs import (
    ClaimReply,
    ClaimRequest,
    ListJobsReply,
    ListJobsRequest,
    RedriveReply,
    RedriveRequest,
    SettleReply,
    SettleRequest,
)
from topics_service.engine.router.router import (
    DeleteRouterReply,
    ListRoutersReply,
    ListRoutersRequest,
    PutRouterReply,
    PutRouterRequest,
    RouterState,
)
from topics_service.engine.watch.frames import WatchRequest


class Routers(Protocol):
    """The calls on routers; see RoutersApi."""

    async def put(self, request: PutRouterRequest, *, principal: Principal) -> PutRouterReply:
        """Create a router or replace its config; durable before it is acknowledged."""
        ...

    async def get(self, name: str, *, principal: Principal) -> RouterState:
        """A router's state, once it has forwarded the records that its source held when the call began."""
        ...

    async def page(self, request: ListRoutersRequest, *, principal: Principal) -> ListRoutersReply:
        """One page, in name order, of the routers that the caller may know of. Does not wait for forwarding."""
        ...

    async def delete(self, name: str, *, principal: Principal) -> DeleteRouterReply:
        """Remove a router; forwarding stops at once, and the copies stay."""
        ...

    async def forwarded(self, topic: str) -> None:
        """Return when the topic has the records that its sources held when the call began."""
        ...


class Groups(Protocol):
    """The calls on consumer groups; see GroupsApi."""

    async def page(self, request: ListGroupsRequest, *, principal: Principal) -> ListGroupsReply:
        """One page, in name order, of the groups that the caller may know of."""
        ...

    async def get(self, name: str, *, principal: Principal) -> GroupState:
        """All about a group, as far as the topics are the caller's to know."""
        ...

    async def delete(self, name: str, *, principal: Principal) -> DeleteGroupReply:
        """Remove a group and its positions; durable before it is acknowledged."""
        ...

    async def consume(self, request: ConsumeRequest, *, principal: Principal) -> ConsumeReply:
        """Read from where the group stands, waiting like a diff; commits nothing. Cancelling it ends the wait."""
        ...

    async def commit(self, name: str, items: Sequence[CommitItem], *, principal: Principal) -> CommitReply:
        """Set positions, all or none; as durable as their topics before it is acknowledged."""
        ...

    async def positions(self, name: str, topic: str | None, *, principal: Principal) -> list[PositionState]:
        """The group's positions, all or those in one topic, as far as the topics are the caller's to know."""
        ...

    async def reset(self, request: ResetRequest, *, principal: Principal) -> list[PositionState]:
        """Move positions, all or none; durable before it is acknowledged."""
        ...

    async def delete_positions(self, name: str, targets: Sequence[Target], *, principal: Principal) -> int:
        """Forget positions, durably; returns how many there were."""
        ...


class Queues(Protocol):
    """The calls on queues; see QueuesApi."""

    async def claim(self, request: ClaimRequest) -> ClaimReply:
        """Lease up to `max` jobs; waits for the cohort if the queue has `claim_jitter_ms` (docs/contract.md, 10.1)."""
        ...

    async def ack(self, request: SettleRequest) -> SettleReply:
        """Finish jobs: delete them, as durably as the queue promises (docs/contract.md, 10.4)."""
        ...

    async def nack(self, request: SettleRequest) -> SettleReply:
        """Release jobs, immediately or after a delay (docs/contract.md, 10.5)."""
        ...

    async def extend(self, request: SettleRequest) -> SettleReply:
        """Extend leases (docs/contract.md, 10.6)."""
        ...

    def push(self, request: ClaimRequest, *, principal: Principal) -> AsyncGenerator[WorkFrame, None]:
        """Lease and push jobs, at most `max` at a time (docs/contract.md, 10.9), until it is closed.

        The first frame says that the stream is open; errors of the opening are raised in its place.
        """
        ...

    async def stop_work(self, name: str, node: str) -> int:
        """Stop the push streams of a worker from taking jobs; returns the number of jobs they hold."""
        ...

    async def redrive(self, request: RedriveRequest, *, principal: Principal) -> RedriveReply:
        """Move dead letters back into the queue, in slices: slices moved before a failure stay moved."""
        ...

    async def jobs(self, request: ListJobsRequest) -> ListJobsReply:
        """List a page of jobs in one state, without changing any."""
        ...


class Watches(Protocol):
    """The calls on watches; see WatchApi."""

    async def create(self, request: WatchRequest, *, principal: Principal) -> Session:
        """Create a session that belongs to the caller's key (docs/contract.md, 8.2)."""
        ...

    async def recall(self, token: str, *, principal: Principal | None) -> dict[str, int] | None:
        """Look up the resume cursors of a token of the caller's key; None if it has expired."""
        ...

    async def open(self, wid: str, cursor: Mapping[str, int], *, principal: Principal | None) -> SessionStream:
        """Open a stream of a session, which resumes where the last one ended (docs/contract.md, 8.3)."""
        ...

    async def stream(self, request: WatchRequest, *, principal: Principal, slot: bool = True) -> WatchStream:
        """Open a stream without a session. With `slot` it takes a connection slot."""
        ...

    def connection(self, principal: Principal) -> AbstractContextManager[None]:
        """Hold a slot for a long-lived connection. Entering raises `throttled` when there are too many."""
        ...

    def remove_sessions(self, key_id: str) -> int:
        """Remove the sessions of an API key in this process, ending their streams with 410; return their number."""
        ...


class Consumers(Protocol):
    """The calls of SQL consumers; see ConsumeApi."""

    async def consume(self, request: sql.ConsumeRequest, *, principal: Principal) -> sql.ConsumeReply:
        """Read a page from where the group stands, or from an explicit offset; waits for a first message."""
        ...

    async def ack(self, request: sql.AckRequest, *, principal: Principal) -> int:
        """Acknowledge all messages up to an offset; return the offset that is acknowledged now."""
        ...


class LiveQueries(Protocol):
    """The calls of live queries; see LiveApi."""

    def follow(self, request: live.LiveRequest, *, principal: Principal) -> AsyncGenerator[live.LiveFrame, None]:
        """The frames of a live query, the first of which says that it is open; closing it ends it."""
        ...


class Sql(Protocol):
    """The calls of SQL; see SqlApi."""

    @property
    def live(self) -> LiveQueries:
        """The calls of live queries."""
        ...

    async def execute(self, request: sql.SqlRequest, *, principal: Principal) -> sql.SqlReply:
        """Run the statements of a request. The error of one is in the reply, with the results before it."""
        ...

    @property
    def consumers(self) -> Consumers:
        """The calls of consumers."""
        ...


class CommonCalls(Protocol):
    """The calls that the Kafka gateway makes as the other protocols do; see TopicsApi."""

    @property
    def limits(self) -> Limits:
        """The limits that requests meet."""
        ...

    @property
    def metrics(self) -> Counters:
        """The figures, which protocols add theirs to."""
        ...

    @property
    def groups(self) -> Groups:
        """The calls on groups."""
        ...

    @property
    def draining(self) -> bool:
        """True while the server drains before it stops."""
        ...

    async def get_topic(self, name: str, *, touch: bool = True, partition: int = 0) -> TopicState:
        """A topic's state; with `touch` it counts as a read for recency (docs/contract.md, 3.4)."""
        ...

    async def delete_topic(self, name: str, *, if_empty: bool = False) -> DeleteTopicReply:
        """Remove a topic and everything in it, irreversibly and durably (docs/contract.md, 3.6)."""
        ...

    async def delete_records(self, request: DeleteRequest) -> DeleteReply:
        """Delete records by seq and/or tag, permanently and silently (docs/contract.md, 6)."""
        ...

    def notify_on_drain(self, event: Settable) -> AbstractContextManager[None]:
        """Set `event` if the server starts to drain."""
        ...


class Topics(CommonCalls, Protocol):
    """The calls on topics and records; `TopicsApi` has them for one engine.

    Every method raises TopicsError. Callers have authorized the call itself; methods that take a `principal` check the
    other names of the request, and raise `forbidden`.
    """

    @property
    def observers(self) -> Observers:
        """The observers of the calls."""
        ...

    @property
    def routers(self) -> Routers:
        """The calls on routers."""
        ...

    @property
    def queues(self) -> Queues:
        """The calls on queues."""
        ...

    @property
    def watches(self) -> Watches:
        """The calls on watches."""
        ...

    @property
    def sql(self) -> Sql | None:
        """The calls of SQL; None if it is not served."""
        ...

    async def put_topic(
        self,
        name: str,
        config: ConfigInput,
        *,
        principal: Principal,
        partition_count: int | None = None,
        kafka_configs: dict[str, str] | None = None,
        placement: str = "",
        zone: str = "",
    ) -> PutTopicReply:
        """Create a topic or replace its config; durable before it is acknowledged (docs/contract.md, 3.3)."""
        ...

    async def list_topics(self, request: ListTopicsRequest, *, principal: Principal) -> ListTopicsReply:
        """One page, in name order, of the topics that the caller may know of (docs/contract.md, 3.5)."""
        ...

    async def append(self, request: AppendRequest, *, principal: Principal) -> AppendReply:
        """Append records atomically; return once they are durable and visible (docs/contract.md, 4)."""
        ...

    async def submit(self, request: AppendRequest, *, principal: Principal) -> Submitted:
        """The first half of `append`: take the write in without waiting for its durability."""
        ...

    async def settle(self, submitted: Submitted) -> AppendReply:
        """The second half of `append`: its reply when it is due, or its error."""
        ...

    def is_settled(self, submitted: Submitted) -> bool:
        """True if `settle` returns without waiting."""
        ...

    async def settle_all(self, writes: Iterable[Submitted]) -> None:
        """Return once each of these writes is visible, or has failed."""
        ...

    async def diff(self, request: DiffRequest) -> DiffReply:
        """Read from a cursor, waiting up to `wait_ms` for a first record (docs/contract.md, 5)."""
        ...

    async def bulk(self, request: BulkRequest) -> tuple[DiffReply, int]:
        """One page of a long read and the topic's epoch; see `api.bulk`."""
        ...

    async def news(self, topic: str, partition: int = 0, after: int | None = None) -> None:
        """Return when records of the partition become visible, when it is deleted, or when the server drains.

        Returns at once if there are visible records `after` a seq.
        """
        ...

    async def locate(self, name: str, ts: int, partition: int = 0) -> tuple[int, int]:
        """The first live seq of time `ts` (ms) or later, head + 1 if there is none yet; and the head."""
        ...

    def ready(self) -> ReadyState:
        """Return the readiness of the server, with the cause if it is not ready."""
        ...

    def shortage(self) -> Shortage | None:
        """Return why a ready server refuses all writes, or None."""
        ...
