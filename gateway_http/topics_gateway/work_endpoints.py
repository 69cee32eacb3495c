"""GET /v0/topics/{topic}/work: jobs pushed as server-sent events, one event for each (docs/contract.md, 10.9)."""

from collections.abc import Callable

from topics_gateway import sse
from topics_gateway.jobs import job_text
from topics_gateway.queue_endpoints import whole
from topics_gateway.request import Request
from topics_gateway.response import EventStream, encode
from topics_service.api.interfaces import Topics
from topics_service.api.work import WorkFrame
from topics_service.engine.errors import invalid
from topics_service.engine.queue.jobs import ClaimRequest, Job
from topics_service.engine.watch.frames import ErrorFrame, HeartbeatFrame


class WorkEndpoint:
    """Opens push streams."""

    def __init__(self, api: Topics) -> None:
        self._api = api

    async def work(self, request: Request) -> EventStream:
        """Checks in this order: Accept 406, node 400, max and lease_ms 400, and the errors of `QueuesApi.push`."""
        sse.require_event_stream(request)
        query = request.query()
        node = query.get("node", "")
        if not node:
            raise invalid("node is missing or empty")
        work_request = ClaimRequest(
            topic=request.name,
            node=node,
            max=whole(query, "max", 1),
            lease_ms=whole(query, "lease_ms", 0) if "lease_ms" in query else None,
        )
        frames = self._api.queues.push(work_request, principal=request.principal)
        return EventStream(sse.opened(frames), lambda _: _encoder(request.name))


def _encoder(topic: str) -> Callable[[WorkFrame], bytes]:
    head = b'{"topic":%b,' % encode(topic)

    def event(job: Job) -> bytes:
        return sse.event(b"job", job_text(job, head), b"%d" % job.seq)

    def encoder(frame: WorkFrame) -> bytes:
        if isinstance(frame, HeartbeatFrame):
            return sse.heartbeat(frame)
        if isinstance(frame, ErrorFrame):
            return sse.error(frame, topic=topic)
        return b"".join(map(event, frame))

    return encoder
