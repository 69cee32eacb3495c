"""Messages of QueueService to the engine's requests, and its replies to messages.

Requests raise `invalid_request` for values that the engine's structs cannot express. Replies come without
`performance.server_total_ms`, which is the servicer's to measure.
"""

from typing import Final

from topics_proto.v1 import job_pb2, performance_pb2, record_pb2, stream_pb2
from topics_proto.v1 import queue_service_pb2 as pb
from topics_service.api.grpc.convert import tag_match
from topics_service.api.grpc.enums import names, numbers
from topics_service.api.grpc.frames import error_message
from topics_service.api.work import WorkFrame
from topics_service.engine.errors import invalid
from topics_service.engine.model import BINARY_KIND
from topics_service.engine.queue.attempts import Attempt
from topics_service.engine.queue.jobs import (
    ClaimReply,
    ClaimRequest,
    Job,
    JobState,
    JobView,
    ListJobsReply,
    ListJobsRequest,
    NackMode,
    RedriveReply,
    RedriveRequest,
    SettleReply,
    SettleRequest,
)
from topics_service.engine.watch.frames import ErrorFrame, HeartbeatFrame
from topics_service.storage.block import Block

# Clients take messages of 4 MiB by default: this much of data and meta, the one record beyond it, and the rest of all.
_DATA_BYTES: Final = 2 << 20

_STATES: Final[dict[int, JobState]] = names(job_pb2.JobState.DESCRIPTOR, "ready")
_STATES_OUT: Final = numbers(job_pb2.JobState.DESCRIPTOR)
_MODES: Final[dict[int, NackMode]] = names(pb.NackMode.DESCRIPTOR, "retry")


def claim_request(request: pb.ClaimRequest | pb.WorkRequest) -> ClaimRequest:
    """A claim, or the claim that a Work stream repeats; the api clamps its numbers."""
    ack = None
    if isinstance(request, pb.ClaimRequest) and request.HasField("ack"):
        ack = SettleRequest(
            topic=request.topic,
            node=request.node,
            seqs=list(request.ack.seqs),
            lease_ids=list(request.ack.lease_ids),
        )
    return ClaimRequest(
        topic=request.topic,
        node=request.node,
        max=request.max,
        lease_ms=request.lease_ms if request.HasField("lease_ms") else None,
        max_bytes=_DATA_BYTES,
        ack=ack,
    )


def claim_response(reply: ClaimReply) -> pb.ClaimResponse:
    """Convert the reply of a claim; `fsync_ms` is set only if an ack in it waited for an fsync."""
    response = pb.ClaimResponse(
        topic=reply.topic,
        claimed=map(job_message, reply.jobs),
        count=len(reply.jobs),
        ready=reply.ready,
        performance=performance_pb2.Performance(throttle_wait_ms=0.0),
    )
    if reply.settled is not None:
        response.acked = reply.settled.done
        response.skipped[:] = reply.settled.skipped
        if reply.settled.fsync_ms:
            response.performance.fsync_ms = reply.settled.fsync_ms
    return response


def ack_request(request: pb.AckRequest) -> SettleRequest:
    """An ack."""
    return SettleRequest(
        topic=request.topic, node=request.node, seqs=list(request.seqs), lease_ids=list(request.lease_ids)
    )


def ack_response(reply: SettleReply) -> pb.AckResponse:
    """Convert the reply of an ack; `fsync_ms` is set only if it waited for an fsync."""
    performance = performance_pb2.Performance()
    if reply.fsync_ms:
        performance.fsync_ms = reply.fsync_ms
    return pb.AckResponse(
        topic=reply.topic,
        acked=reply.done,
        skipped=reply.skipped,
        ready=reply.ready,
        in_flight=reply.in_flight,
        performance=performance,
    )


def nack_request(request: pb.NackRequest) -> SettleRequest:
    """A nack."""
    mode = _MODES.get(request.mode)
    if mode is None:
        raise invalid(f"mode: unknown value {request.mode}")
    return SettleRequest(
        topic=request.topic,
        node=request.node,
        seqs=list(request.seqs),
        lease_ids=list(request.lease_ids),
        delay_ms=request.delay_ms,
        mode=mode,
        reasons=list(request.reasons) or ([request.reason] * len(request.seqs) if request.reason else []),
    )


def nack_response(reply: SettleReply) -> pb.NackResponse:
    """Convert the reply of a nack."""
    return pb.NackResponse(
        topic=reply.topic,
        nacked=reply.done,
        skipped=reply.skipped,
        ready=reply.ready,
        in_flight=reply.in_flight,
        dead_lettered=reply.dead_lettered,
        exhausted=reply.exhausted,
    )


def extend_request(request: pb.ExtendRequest) -> SettleRequest:
    """An extend."""
    if not request.HasField("lease_ms"):
        raise invalid("lease_ms is missing")
    return SettleRequest(
        topic=request.topic,
        node=request.node,
        seqs=list(request.seqs),
        lease_ids=list(request.lease_ids),
        lease_ms=request.lease_ms,
    )


def extend_response(reply: SettleReply) -> pb.ExtendResponse:
    """Convert the reply of an extension, with the new ends of leases."""
    return pb.ExtendResponse(
        topic=reply.topic, extended=reply.done, skipped=reply.skipped, deadlines_ts_ms=reply.deadlines
    )


def redrive_request(request: pb.RedriveRequest) -> RedriveRequest:
    """A redrive."""
    match = tag_match(request.match, "match") if request.HasField("match") else None
    return RedriveRequest(topic=request.topic, match=match, max=request.max)


def redrive_response(reply: RedriveReply) -> pb.RedriveResponse:
    """Convert the reply of a redrive."""
    return pb.RedriveResponse(topic=reply.topic, dead_letter=reply.dead_letter, redriven=reply.redriven)


def list_jobs_request(request: pb.ListJobsRequest) -> ListJobsRequest:
    """A page of jobs; the api clamps its limit."""
    state = _STATES.get(request.state)
    if state is None:
        raise invalid(f"state: unknown value {request.state}")
    limit = request.limit if request.HasField("limit") else 100
    return ListJobsRequest(topic=request.topic, state=state, after=request.after, limit=limit, max_bytes=_DATA_BYTES)


def list_jobs_response(reply: ListJobsReply, state: JobState) -> pb.ListJobsResponse:
    """One page."""
    return pb.ListJobsResponse(
        topic=reply.topic,
        state=_STATES_OUT[state],
        jobs=map(_view_message, reply.jobs),
        next_after=reply.next_after,
    )


def work_frame(topic: str, frame: WorkFrame) -> pb.WorkResponse:
    """One frame of a Work stream."""
    if isinstance(frame, HeartbeatFrame):
        made = stream_pb2.Frame(heartbeat=stream_pb2.Heartbeat(ts_ms=frame.ts))
    elif isinstance(frame, ErrorFrame):
        made = stream_pb2.Frame(error=error_message(frame))
    else:
        made = stream_pb2.Frame(jobs=stream_pb2.JobBatch(topic=topic, jobs=map(job_message, frame)))
    return pb.WorkResponse(frame=made)


def job_message(job: Job) -> job_pb2.Job:
    """One leased job."""
    block, i = job.block, job.position
    message = job_pb2.Job(
        seq=block.base_seq + i,
        lease_id=job.lease_id,
        deadline_ts_ms=job.deadline,
        ts_ms=block.ts_at(i),
        deliveries=job.deliveries,
        data=block.record_data(i),
        kind=_kind(block, i),
        is_last=job.is_last,
    )
    if block.tags is not None and (tag := block.tags[i]) is not None:
        message.tag = tag.decode()
    if block.metas is not None and (meta := block.metas[i]) is not None:
        message.meta = meta
    return message


def _view_message(view: JobView) -> job_pb2.JobView:
    block, i = view.block, view.position
    record = record_pb2.Record(
        seq=block.base_seq + i, ts_ms=block.ts_at(i), data=block.record_data(i), kind=_kind(block, i)
    )
    if block.tags is not None and (tag := block.tags[i]) is not None:
        record.tag = tag.decode()
    if block.nodes is not None and (node := block.nodes[i]) is not None:
        record.node = node.decode()
    if block.metas is not None and (meta := block.metas[i]) is not None:
        record.meta = meta
    return job_pb2.JobView(
        record=record,
        state=_STATES_OUT[view.state],
        deliveries=view.deliveries,
        priority=view.priority,
        node=view.node,
        deadline_ts_ms=view.deadline,
        ready_at_ts_ms=view.ready_at,
        attempts=map(_attempt_message, view.attempts),
    )


def _attempt_message(attempt: Attempt) -> job_pb2.Attempt:
    return job_pb2.Attempt(
        delivery=attempt.delivery, ended_at_ts_ms=attempt.ended_at, node=attempt.node, reason=attempt.reason
    )


def _kind(block: Block, i: int) -> "record_pb2.RecordKind.ValueType":
    is_binary = block.kinds is not None and block.kinds[i] == BINARY_KIND
    return record_pb2.RECORD_KIND_BINARY if is_binary else record_pb2.RECORD_KIND_JSON
