"""Differences of JSON from the protos, field by field; the rules for all other fields are in `schemas.py`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

Schema = dict[str, Any]

TOPIC_NAME: Final = "^[A-Za-z0-9][A-Za-z0-9._:-]{0,254}$"
ROUTER_NAME: Final = "^[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}$"
U64_MAX: Final = (1 << 64) - 1
U32_MAX: Final = (1 << 32) - 1

ANY: Final[Schema] = {"description": "Any JSON."}
TEXT: Final[Schema] = {"type": "string"}
AMOUNT: Final[Schema] = {"type": "integer", "format": "int64", "minimum": 0}
U64: Final[Schema] = AMOUNT | {"maximum": U64_MAX}
U32: Final[Schema] = AMOUNT | {"maximum": U32_MAX}
META: Final[Schema] = {"type": "object", "additionalProperties": True}


@dataclass(frozen=True, kw_only=True)
class Form:
    """Form of one field. `omit`: not shown. `flat`: its own fields stand in its place. `null`: in an answer it is
    there and may be null; in a request null counts as left out. `absent`: it may be missing from an answer. `required`:
    it must be in a request. `schema` replaces the schema of its type, `more` is added to it.
    """

    omit: bool = False
    flat: bool = False
    null: bool = False
    absent: bool = False
    required: bool = False
    schema: Schema | None = None
    more: Schema | None = None


_OMIT: Final = Form(omit=True)
_FLAT: Final = Form(flat=True)
_NULL: Final = Form(null=True)
_ABSENT: Final = Form(absent=True)
_REQUIRED: Final = Form(required=True)
_CLAMPED: Final = Form(schema=AMOUNT)
_U32: Final = Form(schema=U32)
_PARTITION: Final = Form(null=True, schema=U64)
_WORKER: Final = Form(required=True, more={"minLength": 1, "maxLength": 128})
_SEQS: Final = Form(required=True, schema={"type": "array", "items": U64, "minItems": 1, "maxItems": 1000})
_WATCHED: Final = "^([A-Za-z0-9][A-Za-z0-9._:-]{0,254}(@[0-9]{1,3})?|([A-Za-z0-9][A-Za-z0-9._:-]{0,253})?\\*)$"
_LEASE_ID: Final = "^(lease_[0-9a-fA-F]{1,64})?$"
_LEASES: Final = Form(schema={"type": "array", "items": {"type": "string", "pattern": _LEASE_ID}})
_MATCH: Final = Form(null=True, schema={"$ref": "#/components/schemas/TagMatch"})
_NODES: Final = Form(null=True, schema={"oneOf": [TEXT, {"type": "array", "items": TEXT}]})
_END_OR_SEQ: Final[Schema] = {"oneOf": [{"type": "string", "enum": ["earliest", "latest"]}, U64]}
_TIME: Final = Form(schema=AMOUNT | {"maximum": (1 << 63) - 1})
_PLACE: Final = Form(schema=AMOUNT, absent=True)
_BINARY: Final[Schema] = {
    "type": "string",
    "const": "base64",
    "description": "There when the record was written as bytes, over gRPC or Kafka: `data` is their base64 then.",
}

_GROUP: Final = Form(required=True, more={"minLength": 1, "maxLength": 255})
_VALUES: Final[Schema] = {"type": "array", "items": ANY}
_ROWS: Final[Schema] = {"type": "array", "items": _VALUES}
_LIVE_ROW: Final[Schema] = {
    "type": "object",
    "description": "Values by the names of the columns.",
    "additionalProperties": True,
}
_BIGINT: Final[Schema] = {
    "description": "How BIGINT values are written in the answer: as numbers, or as text for JavaScript, whose "
    "numbers are exact up to 2^53 only. Default: number.",
    "type": "string",
    "enum": ["number", "string"],
}
_WORDS_OF_OP: Final[Schema] = {"type": "string", "enum": ["Insert", "Update", "Delete"]}
_WORDS_OF_MODE: Final[Schema] = {"type": "string", "enum": ["Key", "Full", "Diff"]}
_START: Final[Schema] = {
    "description": "Where to read, in any case: an end, while the group has acknowledged nothing here; or an offset, "
    "wherever the group stands. Default: Latest.",
    "oneOf": [
        {"type": "string", "enum": ["Latest", "Earliest"]},
        {"type": "object", "properties": {"Offset": U64}, "required": ["Offset"]},
        {"type": "null"},
    ],
}
_OTHER_NAME: Final[Schema] = TEXT | {"description": "The same as `topic`; one of the two is required."}

REQUESTS: Final[Mapping[str, Form]] = {
    "TopicConfig.priority": Form(null=True, more={"minimum": -(1 << 31), "maximum": (1 << 31) - 1}),
    "TopicConfig.durability": _NULL,
    "TopicConfig.dead_letter": Form(null=True, more={"pattern": TOPIC_NAME}),
    "TopicConfig.retain_until_acked_by": Form(
        null=True,
        schema={"type": "array", "maxItems": 16, "items": {"type": "string", "minLength": 1, "maxLength": 255}},
    ),
    "PutTopicRequest.config": _FLAT,
    "PutTopicRequest.partition_count": Form(null=True, schema=AMOUNT | {"minimum": 1, "maximum": 1000}),
    "PutTopicRequest.placement": Form(null=True, more={"pattern": f"^$|{TOPIC_NAME}"}),
    "PutTopicRequest.zone": Form(null=True, more={"pattern": "^$|^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"}),
    "AppendRequest.records": Form(required=True, more={"minItems": 1, "maxItems": 10000}),
    "AppendRequest.node": _NULL,
    "AppendRequest.idempotency_key": Form(null=True, more={"maxLength": 256}),
    "AppendRequest.create": _NULL,
    "AppendRequest.config": _NULL,
    "AppendRequest.partition": _PARTITION,
    "AppendRequest.delay_ms": _CLAMPED,
    "AppendRequest.priority": Form(schema={"type": "integer", "minimum": 0, "maximum": 9}),
    "AppendRequest.columns": _OMIT,
    "AppendRecord.data": Form(required=True, schema=ANY),
    "AppendRecord.kind": _OMIT,
    "AppendRecord.tag": Form(null=True, more={"maxLength": 256}),
    "AppendRecord.node": Form(null=True, more={"maxLength": 128}),
    "AppendRecord.meta": Form(null=True, schema=META | {"maxProperties": 64}),
    "DiffRequest.limit": _CLAMPED,
    "DiffRequest.node": _NODES,
    "DiffRequest.wait_ms": _CLAMPED,
    "DiffRequest.max_batch_bytes": _CLAMPED,
    "DiffRequest.partition": _PARTITION,
    "DiffRequest.from_ts_ms": Form(schema=U64),
    "DiffRequest.last": _CLAMPED,
    "DiffRequest.filter": _MATCH,
    "DeleteRecordsRequest.before_seq": _NULL,
    "DeleteRecordsRequest.match": _MATCH,
    "DeleteRecordsRequest.partition": _PARTITION,
    "GetTopicRequest.partition": Form(schema=AMOUNT | {"maximum": 10**19 - 1}),
    "ClaimRequest.node": _WORKER,
    "ClaimRequest.max": _CLAMPED,
    "ClaimRequest.lease_ms": Form(null=True, schema=AMOUNT),
    "ClaimRequest.ack": _NULL,
    "FinishedJobs.seqs": _SEQS,
    "FinishedJobs.lease_ids": _LEASES,
    "AckRequest.node": _WORKER,
    "AckRequest.seqs": _SEQS,
    "AckRequest.lease_ids": _LEASES,
    "NackRequest.node": _WORKER,
    "NackRequest.seqs": _SEQS,
    "NackRequest.lease_ids": _LEASES,
    "NackRequest.delay_ms": _CLAMPED,
    "NackRequest.reason": Form(more={"maxLength": 4096}),
    "NackRequest.reasons": _OMIT,
    "ExtendRequest.node": _WORKER,
    "ExtendRequest.seqs": _SEQS,
    "ExtendRequest.lease_ids": _LEASES,
    "ExtendRequest.lease_ms": Form(required=True, schema=AMOUNT),
    "WorkRequest.node": _WORKER,
    "WorkRequest.max": Form(schema=AMOUNT | {"maximum": 10**20 - 1}),
    "WorkRequest.lease_ms": Form(schema=AMOUNT | {"maximum": 10**20 - 1}),
    "RedriveRequest.match": _MATCH,
    "RedriveRequest.max": _CLAMPED,
    "ListJobsRequest.limit": Form(schema=AMOUNT | {"maximum": 10**20 - 1}),
    "ListJobsRequest.after": Form(schema=AMOUNT | {"maximum": 10**20 - 1}),
    "PutRouterRequest.config": _FLAT,
    "RouterConfig.source": Form(required=True, more={"pattern": TOPIC_NAME}),
    "RouterConfig.dest": Form(required=True, more={"pattern": TOPIC_NAME}),
    "RouterConfig.filter": _MATCH,
    "ConsumeRequest.topic": _REQUIRED,
    "ConsumeRequest.partition": _U32,
    "ConsumeRequest.start_at": _OMIT,
    "ConsumeRequest.start_from_seq": _OMIT,
    "ConsumeRequest.limit": _CLAMPED,
    "ConsumeRequest.node": _NODES,
    "ConsumeRequest.wait_ms": _CLAMPED,
    "ConsumeRequest.max_batch_bytes": _CLAMPED,
    "ConsumeRequest.filter": _MATCH,
    "PositionCommit.topic": _REQUIRED,
    "PositionCommit.from_seq": _REQUIRED,
    "TopicPartitions.topic": _REQUIRED,
    "ResetPositionsRequest.to_end": _OMIT,
    "ResetPositionsRequest.to_from_seq": _OMIT,
    "ResetPositionsRequest.to_ts_ms": _TIME,
    "CreateWatchRequest.subscription": _FLAT,
    "WatchSubscription.topics": Form(
        required=True, more={"minProperties": 1, "maxProperties": 256, "propertyNames": {"pattern": _WATCHED}}
    ),
    "WatchSubscription.cursor": Form(null=True, schema={"type": "string", "pattern": "^[A-Za-z0-9_-]*$"}),
    "WatchSubscription.node": _NODES,
    "WatchSubscription.limit": _CLAMPED,
    "WatchSubscription.max_batch_bytes": _CLAMPED,
    "WatchSubscription.heartbeat_ms": _CLAMPED,
    "WatchSubscription.filter": _MATCH,
    "WatchTopic.partition": _PARTITION,
    "OpenWatchRequest.cursor": Form(schema=TEXT),
    "ExecuteRequest.sql": Form(required=True, more={"minLength": 1, "maxLength": 1 << 20}),
    "ExecuteRequest.params": Form(null=True, schema=_VALUES),
    "ExecuteRequest.param_rows": Form(null=True, schema=_ROWS | {"maxItems": 10000}),
    "ExecuteRequest.namespace_id": _NULL,
    "SubscribeRequest.sql": Form(required=True, more={"minLength": 1, "maxLength": 1 << 20}),
    "SubscribeRequest.params": Form(null=True, schema=_VALUES),
    "SubscribeRequest.namespace_id": _NULL,
    "SubscribeRequest.after": Form(null=True, schema={"type": "string", "pattern": "^[0-9a-f]{16}-[0-9]{1,19}$"}),
    "SqlServiceConsumeRequest.group_id": _GROUP,
    "SqlServiceConsumeRequest.start_at": _OMIT,
    "SqlServiceConsumeRequest.start_offset": _OMIT,
    "SqlServiceConsumeRequest.limit": Form(null=True, schema=AMOUNT | {"minimum": 1}),
    "SqlServiceConsumeRequest.partition_id": Form(null=True, schema=U32),
    "SqlServiceConsumeRequest.timeout_seconds": Form(null=True, schema=AMOUNT),
    "SqlServiceAckRequest.group_id": _GROUP,
    "SqlServiceAckRequest.partition_id": Form(null=True, schema=U32),
    "SqlServiceConsumeRequest.claim": _NULL,
    "ClaimOptions.visibility_seconds": Form(null=True, schema=AMOUNT | {"minimum": 1}),
    "SqlServiceAckRequest.claim_id": _NULL,
}
"""Fields of requests, by message and name."""

ANSWERS: Final[Mapping[str, Form]] = {
    "SqlServiceAckResponse.acknowledged_offset": _NULL,
    "SqlServiceAckResponse.none_yet": _OMIT,
    "SqlResult.gaps": _ABSENT,
    "TopicConfig.priority": _NULL,
    "TopicConfig.dead_letter": _NULL,
    "TopicConfig.retain_until_acked_by": _ABSENT,
    "PutTopicResponse.partition_count": _PLACE,
    "PutTopicResponse.placement": _ABSENT,
    "PutTopicResponse.zone": _ABSENT,
    "GetTopicResponse.state": _FLAT,
    "QueueState.delayed": _OMIT,
    "QueueState.retrying": _OMIT,
    "QueueState.exhausted": _OMIT,
    "TopicState.last_write_ts_ms": _NULL,
    "TopicState.last_read_ts_ms": _NULL,
    "TopicState.partition_count": _PLACE,
    "TopicState.partition": _PLACE,
    "TopicState.placement": _ABSENT,
    "TopicState.zone": _ABSENT,
    "TopicState.partitions": _ABSENT,
    "PartitionState.last_write_ts_ms": _NULL,
    "TopicSummary.type": _OMIT,
    "TopicSummary.topic_id": _OMIT,
    "TopicSummary.partition_count": _PLACE,
    "GetReadyResponse.writes_refused": _ABSENT,
    "ListTopicsResponse.next_cursor": _ABSENT,
    "AppendResponse.seqs": _ABSENT,
    "AppendResponse.partition": _PLACE,
    "Record.meta": Form(absent=True, schema=META),
    "Record.data": Form(schema=ANY),
    "Record.kind": _OMIT,
    "DiffResponse.tombstone": _NULL,
    "DiffResponse.partition": _PLACE,
    "DeleteRecordsResponse.partition": _PLACE,
    "ClaimResponse.skipped": _ABSENT,
    "NackResponse.dead_lettered": _OMIT,
    "NackResponse.exhausted": _OMIT,
    "Job.meta": Form(absent=True, schema=META),
    "Job.data": Form(schema=ANY),
    "Job.kind": _OMIT,
    "Job.is_last": _OMIT,
    "JobView.record": _FLAT,
    "JobView.attempts": _ABSENT,
    "JobView.priority": Form(absent=True, schema={"type": "integer", "minimum": 1, "maximum": 9}),
    "PutRouterResponse.config": _FLAT,
    "GetRouterResponse.state": _FLAT,
    "RouterState.config": _FLAT,
    "RouterState.last_error": _NULL,
    "RouterConfig.create_dest": _OMIT,
    "RouterConfig.backfill": _OMIT,
    "RouterConfig.filter": Form(null=True, schema={"$ref": "#/components/schemas/TagRule"}),
    "ListRoutersResponse.next_cursor": _ABSENT,
    "ListGroupsResponse.next_cursor": _ABSENT,
    "GetGroupResponse.state": _FLAT,
    "GroupState.last_commit_ts_ms": _NULL,
    "GroupSummary.last_commit_ts_ms": _NULL,
    "ConsumeResponse.committed_from_seq": _NULL,
    "ConsumeResponse.page": _FLAT,
    "TopicTombstone.tombstone": _FLAT,
    "TopicTombstone.partition": _PLACE,
    "RecordBatch.partition": _PLACE,
    "CaughtUp.partition": _PLACE,
    "TopicDeleted.partition": _PLACE,
    "SqlResult.rows": Form(schema=_ROWS),
    "LiveSnapshot.rows": Form(schema={"type": "array", "items": _LIVE_ROW}),
    "LiveSnapshot.position": _ABSENT,
    "LiveChange.op": Form(schema=_WORDS_OF_OP),
    "LiveChange.row": Form(schema=_LIVE_ROW | {"type": ["object", "null"]}),
    "LiveChange.old": Form(schema=_LIVE_ROW | {"type": ["object", "null"]}),
    "TopicMessage.message_id": _NULL,
    "TopicMessage.source_table": _NULL,
    "TopicMessage.op": Form(null=True, schema=_WORDS_OF_OP),
    "TopicMessage.payload_mode": Form(schema=_WORDS_OF_MODE),
    "TopicMessage.payload": Form(null=True, schema=TEXT | {"contentEncoding": "base64"}),
    "StreamError.reason": _OMIT,
    "StreamError.message": _OMIT,  # `error` in JSON
    "StreamError.topics": _ABSENT,
    "StreamError.terminal": _OMIT,
}
"""Fields of answers, by message and name."""

ADDED: Final[Mapping[str, Schema]] = {
    "ConsumeRequest": {
        "start": _END_OR_SEQ
        | {
            "description": "Where to start while the group has committed nothing in this partition: an end, or behind "
            "a seq. Default: earliest."
        }
    },
    "CommitPositionsRequest": {
        "topic": TEXT | {"description": "In place of `positions`: the topic of the one position to set."},
        "partition": U32 | {"description": "In place of `positions`: its partition. Default 0."},
        "from_seq": U64 | {"description": "In place of `positions`: everything up to this seq is dealt with."},
        "metadata": TEXT | {"description": "In place of `positions`: kept for the client, at most 4096 bytes."},
    },
    "ResetPositionsRequest": {
        "to": _END_OR_SEQ
        | {
            "description": "Where to: an end of each partition, or behind this seq. Either this or `to_ts` is required."
        },
        "topic": TEXT | {"description": "In place of `topics`: the one topic concerned."},
        "partition": U32 | {"description": "With `topic`: the one partition concerned."},
    },
    "DeletePositionsRequest": {
        "topic": TEXT | {"description": "In place of `topics`: the one topic concerned."},
        "partition": U32 | {"description": "With `topic`: the one partition concerned."},
    },
    "ExecuteRequest": {"bigint": _BIGINT},
    "SubscribeRequest": {"bigint": _BIGINT},
    "ExecuteResponse": {
        "status": {"description": "An error has the status `error`.", "type": "string", "enum": ["success"]},
    },
    "SqlServiceConsumeRequest": {"start": _START, "topic_id": _OTHER_NAME},
    "SqlServiceAckRequest": {"topic_id": _OTHER_NAME},
    "Record": {"$encoding": _BINARY},
    "Job": {"$encoding": _BINARY},
    "StreamError": {"error": TEXT | {"description": "Text for people; may change between versions."}},
}
"""Members that are no field of the message, by message; they may be missing."""

ALWAYS: Final = frozenset({"StreamError.error", "ExecuteResponse.status"})
"""Those of `ADDED` that are never missing."""
