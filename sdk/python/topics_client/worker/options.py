"""Options and statistics of a worker."""

import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypedDict

from topics_client.models import Job
from topics_client.worker.ack_sender import Backoff

_MAX_JOBS: Final = 1000  # of one stream; the server clamps to this
_LEASE_MS: Final = range(100, 86_400_000 + 1)
_NODE_BYTES: Final = 128
DEFAULT_BACKOFF: Final = Backoff()

OnError = Callable[[Job, BaseException], None]


class WorkerOptions(TypedDict, total=False):
    """The options of Worker, to annotate functions that pass them on."""

    node: str | None
    concurrency: int
    prefetch: int
    lease_ms: int | None
    backoff: Backoff
    drain_seconds: float
    until_empty: bool
    on_error: OnError | None
    install_signals: bool


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    """Statistics of a worker: jobs `taken`, and of these `acked` (at the queue's durability), `retried` (failed and
    returned for a retry), `given_up` (failed for the last time: dead-lettered, or about to be), `released` (returned
    unprocessed, or not finished in time), `lost` (not known to be acked, as the lease was lost; may be processed
    again). `running` is the current number."""

    taken: int = 0
    running: int = 0
    acked: int = 0
    retried: int = 0
    released: int = 0
    lost: int = 0
    given_up: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Validated options: see Worker. Raises ValueError."""

    node: str
    concurrency: int
    prefetch: int
    lease_ms: int | None
    backoff: Backoff
    drain_seconds: float
    until_empty: bool
    on_error: OnError | None

    @property
    def slots(self) -> int:
        """The maximum number of jobs that the worker holds."""
        return self.concurrency + self.prefetch

    def __post_init__(self) -> None:
        if not 1 <= self.concurrency <= _MAX_JOBS:
            raise ValueError(f"concurrency is {self.concurrency}: a worker runs 1 to {_MAX_JOBS} jobs at a time")
        if not 0 <= self.prefetch <= _MAX_JOBS - self.concurrency:
            raise ValueError(
                f"prefetch is {self.prefetch}: with concurrency it is at most {_MAX_JOBS}, and not below 0"
            )
        if self.lease_ms is not None and self.lease_ms not in _LEASE_MS:
            raise ValueError(f"lease_ms is {self.lease_ms}: a lease is {_LEASE_MS[0]} to {_LEASE_MS[-1]} ms long")
        if not 1 <= len(self.node.encode()) <= _NODE_BYTES:
            raise ValueError(f"node has {len(self.node.encode())} bytes: a name of a worker has 1 to {_NODE_BYTES}")
        if self.drain_seconds < 0:
            raise ValueError(f"drain_seconds is {self.drain_seconds}: it is 0 or more")


def default_node() -> str:
    """A unique name for a worker."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"[-_NODE_BYTES:]
