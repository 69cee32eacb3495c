"""The calls of the api that change more than records do, told to the audit log whatever door they come by."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from topics_service.api.access.auth import Principal
from topics_service.api.audit import AuditLog
from topics_service.api.checkpoints import Checkpoints, Held
from topics_service.api.groups import GroupsApi
from topics_service.api.metrics.collector import MetricsSources
from topics_service.api.queues import QueuesApi
from topics_service.api.routers import RoutersApi
from topics_service.api.scheduling.commit import GroupCommit
from topics_service.api.scheduling.pressure import Pressure
from topics_service.api.topics import Submitted, TopicsApi
from topics_service.api.watch import WatchCaps
from topics_service.engine.engine import Engine
from topics_service.engine.model import (
    AppendRequest,
    ConfigInput,
    DeleteReply,
    DeleteRequest,
    DeleteTopicReply,
    DiffReply,
    DiffRequest,
    PutTopicReply,
)
from topics_service.engine.offsets.positions import DeleteGroupReply, PositionState, ResetRequest, Target
from topics_service.engine.queue.jobs import RedriveReply, RedriveRequest
from topics_service.engine.router.router import DeleteRouterReply, PutRouterReply, PutRouterRequest

_Admit = Callable[[], Engine]
_Settle = Callable[[int], Awaitable[None]]


class AuditedTopicsApi(TopicsApi):
    """TopicsApi with an audit log."""

    def __init__(
        self,
        engine: Engine,
        commit: GroupCommit,
        pressure: Pressure | None = None,
        watch_caps: WatchCaps | None = None,
        metrics_sources: MetricsSources | None = None,
        *,
        audit: AuditLog,
    ) -> None:
        super().__init__(engine, commit, pressure, watch_caps, metrics_sources)
        self._audit = audit
        self.routers = _Routers(self._admit, self._settle, audit)
        self.groups = _Groups(self._admit, self._settle, self.diff, audit)
        self.queues = _Queues(self._admit, self._settle, self.watches.connection, self.routers.forwarded, audit=audit)

    async def put_topic(
        self,
        name: str,
        config: ConfigInput,
        *,
        principal: Principal,
        partition_count: int | None = None,
        kafka_configs: dict[str, str] | None = None,
    ) -> PutTopicReply:
        """See TopicsApi, as for every method here."""
        facts: dict[str, Any] = {"config": _said(config)}
        if partition_count is not None:
            facts["partition_count"] = partition_count
        if kafka_configs:
            facts["kafka_configs"] = kafka_configs
        with self._audit.change("topic.put", principal, topic=name, **facts) as change:
            reply = await super().put_topic(
                name, config, principal=principal, partition_count=partition_count, kafka_configs=kafka_configs
            )
            change.facts["created"] = reply.created
            return reply

    async def delete_topic(self, name: str, *, if_empty: bool = False) -> DeleteTopicReply:
        with self._audit.change("topic.delete", topic=name, if_empty=if_empty) as change:
            reply = await super().delete_topic(name, if_empty=if_empty)
            change.facts |= {"deleted": reply.deleted, "routers_removed": reply.routers_removed}
            return reply

    async def submit(self, request: AppendRequest, *, principal: Principal) -> Submitted:
        submitted = await super().submit(request, principal=principal)
        if submitted.reply is not None and submitted.reply.created:
            facts: dict[str, Any] = {"topic": request.topic, "created": True, "by": "append"}
            if request.config is not None:
                facts["config"] = _said(request.config)
            self._audit.write("topic.put", facts, principal=principal, outcome="done")
        return submitted

    async def delete_records(self, request: DeleteRequest) -> DeleteReply:
        facts = {"partition": request.partition, "before_seq": request.before_seq, "match": _said(request.match)}
        with self._audit.change("records.delete", topic=request.topic, **facts) as change:
            reply = await super().delete_records(request)
            change.facts["deleted"] = reply.deleted
            return reply


class AuditedCheckpoints(Checkpoints):
    """Checkpoints with an audit log."""

    def __init__(self, *arguments: Any, audit: AuditLog) -> None:
        super().__init__(*arguments)
        self._audit = audit

    async def create(self, ttl_ms: int = 0) -> Held:
        with self._audit.change("checkpoint.create") as change:
            held = await super().create(ttl_ms)
            change.facts |= {"checkpoint": held.checkpoint_id, "expires_ms": held.expires_ms}
            return held

    async def release(self, checkpoint_id: str) -> bool:
        with self._audit.change("checkpoint.release", checkpoint=checkpoint_id) as change:
            released = await super().release(checkpoint_id)
            change.facts["released"] = released
            return released


class _Routers(RoutersApi):
    def __init__(self, admit: _Admit, settle: _Settle, audit: AuditLog) -> None:
        super().__init__(admit, settle)
        self._audit = audit

    async def put(self, request: PutRouterRequest, *, principal: Principal) -> PutRouterReply:
        facts = {"config": _said(request.config)}
        with self._audit.change("router.put", principal, router=request.router, **facts) as change:
            reply = await super().put(request, principal=principal)
            change.facts["created"] = reply.created
            return reply

    async def delete(self, name: str, *, principal: Principal) -> DeleteRouterReply:
        with self._audit.change("router.delete", principal, router=name) as change:
            reply = await super().delete(name, principal=principal)
            change.facts["deleted"] = reply.deleted
            return reply


class _Groups(GroupsApi):
    def __init__(
        self, admit: _Admit, settle: _Settle, diff: Callable[[DiffRequest], Awaitable[DiffReply]], audit: AuditLog
    ) -> None:
        super().__init__(admit, settle, diff)
        self._audit = audit

    async def delete(self, name: str, *, principal: Principal) -> DeleteGroupReply:
        with self._audit.change("group.delete", principal, group=name) as change:
            reply = await super().delete(name, principal=principal)
            change.facts["deleted"] = reply.deleted
            return reply

    async def reset(self, request: ResetRequest, *, principal: Principal) -> list[PositionState]:
        facts = {"to": request.to, "ts": request.ts, "targets": _said(list(request.targets))}
        with self._audit.change("group.reset", principal, group=request.group, **facts) as change:
            moved = await super().reset(request, principal=principal)
            change.facts["moved"] = len(moved)
            return moved

    async def delete_positions(self, name: str, targets: Sequence[Target], *, principal: Principal) -> int:
        facts = {"targets": _said(list(targets))}
        with self._audit.change("group.delete_positions", principal, group=name, **facts) as change:
            gone = await super().delete_positions(name, targets, principal=principal)
            change.facts["deleted"] = gone
            return gone


class _Queues(QueuesApi):
    def __init__(self, *arguments: Any, audit: AuditLog) -> None:
        super().__init__(*arguments)
        self._audit = audit

    async def redrive(self, request: RedriveRequest, *, principal: Principal) -> RedriveReply:
        facts = {"match": _said(request.match), "max": request.max}
        with self._audit.change("queue.redrive", principal, topic=request.topic, **facts) as change:
            reply = await super().redrive(request, principal=principal)
            change.facts |= {"dead_letter": reply.dead_letter, "redriven": reply.redriven}
            return reply


def _said(value: Any) -> Any:
    """What a request says, as JSON has it, without what it leaves out."""
    told = msgspec.to_builtins(value) if value is not UNSET else None
    return {name: each for name, each in told.items() if each is not None} if isinstance(told, dict) else told
