"""The audit log: who changed what, by which door, and how it went. One line of JSON for each change.

A door tells by `current_call` from where a request comes, `access.authorize` whose it is, and the calls of the api
(`audit_calls`) what it does. Without an audit log `current_call` stays None.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final

from topics_service.api.access.auth import Principal
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
    "topics.v1.AdminService.CreateCheckpoint": ("checkpoint.create", "checkpoint"),
    "topics.v1.AdminService.ReleaseCheckpoint": ("checkpoint.release", "checkpoint"),
}
"""What is logged, by RPC: the action, and what its target is called."""

_NAME_CHARACTERS: Final = 512  # a name that is refused may be as long as a request
_LINE_BYTES: Final = 8192


class Call:
    """One request at a door: `peer` is the client's address, `principal` who it is, once that is known."""

    __slots__ = ("door", "log", "peer", "principal")

    def __init__(self, log: "AuditLog", door: str, peer: str, principal: Principal | None = None) -> None:
        self.log = log
        self.door = door
        self.peer = peer
        self.principal = principal

    def refused(self, rpc: str, name: str, error: TopicsError) -> None:
        """It may not do what it wants; logged if that is a change that is."""
        action = ACTIONS.get(rpc)
        if action is not None:
            self.log.write(action[0], {action[1]: name or None}, call=self, outcome="refused", reason=error.reason.code)


current_call: ContextVar[Call | None] = ContextVar("call", default=None)


class Change:
    """A change under way; `facts` are told of it in the end."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.facts = facts


class AuditLog:
    """Writes what happens to `sink`. Names and keys come out as JSON strings, so nobody can forge a line.

    Of a key it tells the `key_id`, which is made from the key's digest.
    """

    def __init__(self, sink: Sink, *, clock: Callable[[], float] = time.time) -> None:
        """`clock` gives seconds since 1970."""
        self._sink = sink
        self._clock = clock

    @contextmanager
    def change(self, action: str, principal: Principal | None = None, **facts: Any) -> Iterator[Change]:
        """Log `action` when it ends: `done`, or `refused` or `failed` with the reason, or `unknown` if nobody waited
        for the outcome."""
        change = Change(facts)
        outcome, reason = "done", ""
        try:
            yield change
        except TopicsError as error:
            outcome = "failed" if error.reason.value.http_status >= 500 else "refused"
            reason = error.reason.code
            raise
        except asyncio.CancelledError:
            outcome, reason = "unknown", "the client did not wait"
            raise
        except BaseException:
            outcome, reason = "failed", "internal"
            raise
        finally:
            self.write(action, change.facts, principal=principal, outcome=outcome, reason=reason)

    def write(
        self,
        action: str,
        facts: Mapping[str, Any],
        *,
        outcome: str,
        reason: str = "",
        call: Call | None = None,
        principal: Principal | None = None,
    ) -> None:
        """Log one action of `call` (None: the current one), on behalf of `principal` (None: that of the call)."""
        call = call or current_call.get()
        principal = principal or (call.principal if call is not None else None)
        now = self._clock()
        line = {
            "time": datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "action": action,
            "outcome": outcome,
            "door": call.door if call is not None else "server",
            "peer": call.peer if call is not None else None,
            "key": (principal.key_id or None) if principal is not None else None,
        }
        if reason:
            line["reason"] = reason
        told = {name: _short(value) for name, value in facts.items()}
        text = _encode(line | told)
        if len(text) > _LINE_BYTES:
            named = {name: value for name, value in told.items() if isinstance(value, str)}
            text = _encode(line | named | {"cut": True})
        self._sink(text.encode() + b"\n")


def _encode(line: dict[str, Any]) -> str:
    """JSON in ASCII: what else some take for the end of a line (U+2028) is escaped."""
    return json.dumps(line, separators=(",", ":"))


def _short(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= _NAME_CHARACTERS else value[:_NAME_CHARACTERS] + "…"
    return value
