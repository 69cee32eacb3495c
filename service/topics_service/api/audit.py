"""The audit log: each change with its caller, protocol and outcome. One line of JSON for each change.

It observes the calls of the API (`observers`); the context of the current request says where the call comes from.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec import UNSET

from topics_service.api.access.auth import Principal
from topics_service.api.observers import End, Observation
from topics_service.api.request_context import current_request
from topics_service.engine.errors import TopicsError

Sink = Callable[[bytes], None]
"""Takes one line, with its end; must not block."""

ACTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "topics.v1.TopicsService.PutTopic": ("topic.put", "topic"),
    "topics.v1.TopicsService.DeleteTopic": ("topic.delete", "topic"),
    "topics.v1.TopicsService.DeleteRecords": ("records.delete", "topic"),
    "topics.v1.RouterService.PutRouter": ("router.put", "router"),
    "topics.v1.RouterService.DeleteRouter": ("router.delete", "router"),
    "topics.v1.GroupService.DeleteGroup": ("group.delete", "group"),
    "topics.v1.GroupService.ResetPositions": ("group.reset", "group"),
    "topics.v1.GroupService.DeletePositions": ("group.delete_positions", "group"),
    "topics.v1.QueueService.Redrive": ("queue.redrive", "topic"),
    "topics.v1.SqlService.Ack": ("topic.ack", "topic"),
    "topics.v1.AdminService.CreateCheckpoint": ("checkpoint.create", "checkpoint"),
    "topics.v1.AdminService.ReleaseCheckpoint": ("checkpoint.release", "checkpoint"),
    "topics.v1.AdminService.MoveShard": ("shard.move", "shard"),
    "topics.v1.AdminService.DrainNode": ("node.drain", "node"),
    "topics.v1.AdminService.SetShardZone": ("shard.zone", "shards"),
}
"""The logged RPCs: the action, and the name of its target's kind."""

SQL_ACTIONS: Final = frozenset({"sql.define", "sql.user"})
"""Actions of statements: definitions, and changes of users."""
_AUDITED: Final = frozenset(action for action, _ in ACTIONS.values()) | SQL_ACTIONS

_NAME_CHARACTERS: Final = 512  # a name that is refused may be as long as a request
_LINE_BYTES: Final = 8192


class AuditLog:
    """Writes entries to `sink`. Names and keys are JSON strings, so a line can't be forged.

    Of a key it has the `key_id`, which is made from the key's digest.
    """

    def __init__(self, sink: Sink, *, clock: Callable[[], float] = time.time) -> None:
        """`clock` gives seconds since 1970."""
        self._sink = sink
        self._clock = clock

    def observe(self, observation: Observation) -> End | None:
        """Log a call that changes something when it ends: `done`, or `refused` or `failed` with the reason, or
        `unknown` if the caller did not wait for the outcome."""
        if observation.name not in _AUDITED:
            return None

        def end(error: BaseException | None) -> None:
            outcome, reason = "done", ""
            if isinstance(error, TopicsError):
                outcome = "failed" if error.reason.value.http_status >= 500 else "refused"
                reason = error.reason.code
            elif isinstance(error, asyncio.CancelledError):
                outcome, reason = "unknown", "the client did not wait"
            elif error is not None:
                outcome, reason = "failed", "internal"
            facts, principal = observation.facts, observation.principal
            self.write(observation.name, facts, principal=principal, outcome=outcome, reason=reason)

        return end

    def write(
        self,
        action: str,
        facts: Mapping[str, Any],
        *,
        outcome: str,
        reason: str = "",
        principal: Principal | None = None,
    ) -> None:
        """Log one action of the current request, on behalf of `principal` (None: that of the request)."""
        request = current_request.get()
        if principal is None and request is not None:
            principal = request.principal
        now = self._clock()
        line = {
            "time": datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "action": action,
            "outcome": outcome,
            "door": request.protocol if request is not None else "server",
            "peer": request.peer if request is not None else None,
            "key": (principal.key_id or None) if principal is not None else None,
        }
        if reason:
            line["reason"] = reason
        shown = {name: _plain(value) for name, value in facts.items()}
        text = _encode(line | shown)
        if len(text) > _LINE_BYTES:
            named = {name: value for name, value in shown.items() if isinstance(value, str)}
            text = _encode(line | named | {"cut": True})
        self._sink(text.encode() + b"\n")


def _encode(line: dict[str, Any]) -> str:
    """JSON in ASCII: other line separators (U+2028) are escaped."""
    return json.dumps(line, separators=(",", ":"))


def _plain(value: Any) -> Any:
    """A fact as JSON has it: a long name cut, and without the members that a request leaves out."""
    if isinstance(value, str):
        return value if len(value) <= _NAME_CHARACTERS else value[:_NAME_CHARACTERS] + "…"
    plain = msgspec.to_builtins(value) if value is not UNSET else None
    return {name: each for name, each in plain.items() if each is not None} if isinstance(plain, dict) else plain
