"""Tracing that is on: the parts of a server with spans around them."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

from topics_server import logs
from topics_server.interceptors import App, Make
from topics_server.tracing.grpc import TraceInterceptor
from topics_server.tracing.http import traced_app
from topics_server.tracing.kafka import traced_kafka
from topics_server.tracing.noop import Tracing
from topics_server.tracing.spans import CallSpan, Spans, current_trace_id, now, parent
from topics_service.api.scheduling.commit import GroupCommit
from topics_service.engine.engine import Engine
from topics_service.engine.model import ConfigInput, DeleteTopicReply, PutTopicReply
from topics_service.engine.router.forwarding import Forwarding
from topics_service.engine.router.hops import Hops
from topics_service.engine.router.router import Router
from topics_service.storage.rocks import RocksStore
from topics_service.storage.store import WriteBatch


class TracingOn(Tracing):
    """Spans, exported by `exporter`. One per process."""

    def __init__(self, exporter: str) -> None:
        """Raises ValueError for variables OTEL_* that can't be used."""
        super().__init__()
        spans = self._spans = Spans(exporter, self.statistics)
        self.interceptors = (TraceInterceptor(spans),)

        class Store(_Store):
            spans: ClassVar[Spans] = self._spans

        class Commit(_Commit):
            spans: ClassVar[Spans] = self._spans

        class TracedEngine(_Engine):
            spans: ClassVar[Spans] = self._spans

        self.store, self.commit, self.engine = Store, Commit, TracedEngine
        logs.trace_ids[:] = [current_trace_id]

    def app(self, app: App) -> App:
        return traced_app(app, self._spans)

    def kafka(self, make: Make) -> Make:
        return traced_kafka(make, self._spans)

    def forwarding(self, engine: Engine) -> None:
        engine.routers.forwarding = _Forwarding(engine.routers.forwarding, self._spans)

    def checkpoint(self, make: Callable[[Path], None]) -> Callable[[Path], None]:
        def traced(path: Path) -> None:
            with self._spans.child(parent(), "topics.checkpoint.create", {"topics.checkpoint": path.name}):
                make(path)

        return traced

    def recovery(self) -> AbstractContextManager[object]:
        return self._spans.child(None, "topics.recovery")

    def stop(self) -> None:
        self._spans.stop()


class _Store(RocksStore):
    spans: ClassVar[Spans]

    def write(self, batch: WriteBatch) -> None:
        call = parent()
        if call is None:
            super().write(batch)
            return
        with self.spans.child(call, "topics.store.write", {"topics.batch.bytes": batch.nbytes}):
            super().write(batch)


class _Commit(GroupCommit):
    spans: ClassVar[Spans]

    async def wait(self, ticket: int) -> None:
        call = parent()
        if call is None or self.covers(ticket):
            await super().wait(ticket)
            return
        with self.spans.child(call, "topics.commit.wait"):
            await super().wait(ticket)


class _Engine(Engine):
    spans: ClassVar[Spans]

    def put_topic(
        self,
        name: str,
        config: ConfigInput,
        partition_count: int | None = None,
        kafka_configs: dict[str, str] | None = None,
    ) -> tuple[PutTopicReply, int]:
        call = parent()
        if call is None:
            return super().put_topic(name, config, partition_count, kafka_configs)
        with self.spans.child(call, _PUTS.get(_name(call), "topics.topic.put"), {"topic": name}) as span:
            reply, ticket = super().put_topic(name, config, partition_count, kafka_configs)
            span.set_attributes(
                {
                    "topic_id": reply.identity.topic_id,
                    "partition_count": reply.identity.partition_count,
                    "topics.created": reply.created,
                }
            )
            return reply, ticket

    def delete_topic(self, name: str, *, if_empty: bool = False) -> tuple[DeleteTopicReply, int]:
        call = parent()
        if call is None:
            return super().delete_topic(name, if_empty=if_empty)
        with self.spans.child(call, "rafka.broker.topic.delete", {"topic": name}):
            return super().delete_topic(name, if_empty=if_empty)


_PUTS = {
    "rafka.gateway.kafka.create-topics": "rafka.gateway.topic.create.via-wire",
    "rafka.gateway.kafka.metadata": "rafka.gateway.topic.create.from-metadata",
}


def _name(call: CallSpan) -> str:
    span: Any = call.span
    return str(span.name)


class _Forwarding(Forwarding):
    """Forwards as `inner` does. A slice that moved its router, or failed, is a span: of the call that waits for it, or
    of none."""

    def __init__(self, inner: Forwarding, spans: Spans) -> None:
        self._inner = inner
        self._spans = spans

    def step(self, router: Router, source_hops: Hops | None = None, dest_hops: Hops | None = None) -> bool:
        began, cursor, forwarded = now(), router.cursor, router.forwarded
        failed: Exception | None = None
        try:
            return self._inner.step(router, source_hops, dest_hops)
        except Exception as error:
            failed = error
            raise
        finally:
            if failed is not None or router.cursor != cursor:
                attributes: dict[str, str | int | bool] = {
                    "topics.router": router.name,
                    "topics.router.source": router.config.source,
                    "messaging.destination.name": router.config.dest,
                    "messaging.batch.message_count": router.forwarded - forwarded,
                }
                self._spans.past(parent(), "topics.router.forward", began, attributes, failed)
