"""Additions of HTTP to each call of the protos: statuses, parameters, events, links."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from topics_openapi.forms import AMOUNT, TEXT, Schema

FIELDS_IN_HEADERS: Final[Mapping[str, str]] = {"AppendRequest.idempotency_key": "Idempotency-Key"}
"""Fields of a body that a header may hold instead."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One RPC on HTTP.

    `name`: of the operation, where that of the RPC is another one's too. `created`: it answers 201 where it brought
    something into existence. `query`: the fields that are query parameters, where there is a body; without one, all
    are that are not in the path. `headers`: further ones, with their schema. `errors`: codes beyond those that the
    proto and `EVERYWHERE` name. `optional_body`: the body may be left out. `events`: it answers with server-sent
    events, whose data has this schema by the event's name. `token`: it takes its key in the query, too. `probe`:
    without keys, caps and timings. `links`: see OpenAPI; by status.
    """

    name: str = ""
    created: bool = False
    query: tuple[str, ...] = ()
    headers: Mapping[str, Schema] = field(default_factory=dict)
    errors: tuple[str, ...] = ()
    optional_body: bool = False
    events: Mapping[str, str] = field(default_factory=dict)
    token: bool = False
    probe: bool = False
    links: Mapping[int, Schema] = field(default_factory=dict)


_PLAIN: Final = Call()
_IDEMPOTENCY_KEY: Final = TEXT | {
    "description": "The `idempotency_key`, where the body has none: at most 256 characters.",
    "maxLength": 256,
}
_LAST_EVENT_ID: Final = TEXT | {
    "description": "The id of the last event that was dealt with. Wins over `cursor`; what is no such id is ignored."
}


def _link(operation: str, text: str, **parameters: str) -> dict[str, Any]:
    return {"operationId": operation, "description": text, "parameters": parameters}


def _of_topic(operation: str, text: str) -> dict[str, Any]:
    return _link(operation, text, topic="$response.body#/topic")


_TOPIC_LINKS: Final = {
    "state": _of_topic("getTopic", "The state of the topic."),
    "write": _of_topic("append", "Write to the topic."),
    "read": _of_topic("diff", "Read the topic."),
    "remove": _of_topic("deleteTopic", "Remove the topic."),
}
_WRITTEN_LINKS: Final = {
    "read": _of_topic("diff", "Read what was written."),
    "delete": _of_topic("deleteRecords", "Delete records of the topic."),
    "claim": _of_topic("claim", "Lease what was written, where the topic is a queue."),
}
_ROUTER_LINKS: Final = {"state": _link("getRouter", "The state of the router.", router="$response.body#/router")}

CALLS: Final[Mapping[str, Call]] = {
    "TopicsService.PutTopic": Call(created=True, optional_body=True, links={200: _TOPIC_LINKS, 201: _TOPIC_LINKS}),
    "TopicsService.GetTopic": _PLAIN,
    "TopicsService.ListTopics": Call(
        links={200: {"next": _link("listTopics", "The next page.", cursor="$response.body#/next_cursor")}}
    ),
    "TopicsService.DeleteTopic": _PLAIN,
    "TopicsService.Append": Call(
        created=True,
        query=("return_seqs",),
        headers={"Idempotency-Key": _IDEMPOTENCY_KEY},
        errors=("forbidden",),
        links={200: _WRITTEN_LINKS, 201: _WRITTEN_LINKS},
    ),
    "TopicsService.Diff": Call(optional_body=True),
    "TopicsService.DeleteRecords": _PLAIN,
    "QueueService.Claim": _PLAIN,
    "QueueService.Ack": _PLAIN,
    "QueueService.Nack": _PLAIN,
    "QueueService.Extend": _PLAIN,
    "QueueService.Work": Call(events={"job": "JobEvent", "error": "ErrorEvent"}, token=True),
    "QueueService.Redrive": Call(optional_body=True),
    "QueueService.ListJobs": _PLAIN,
    "RouterService.PutRouter": Call(created=True, links={200: _ROUTER_LINKS, 201: _ROUTER_LINKS}),
    "RouterService.GetRouter": _PLAIN,
    "RouterService.ListRouters": _PLAIN,
    "RouterService.DeleteRouter": _PLAIN,
    "GroupService.ListGroups": _PLAIN,
    "GroupService.GetGroup": _PLAIN,
    "GroupService.DeleteGroup": _PLAIN,
    "GroupService.Consume": _PLAIN,
    "GroupService.CommitPositions": Call(
        links={200: {"positions": _link("fetchPositions", "Read them again.", group="$response.body#/group")}}
    ),
    "GroupService.FetchPositions": _PLAIN,
    "GroupService.ResetPositions": _PLAIN,
    "GroupService.DeletePositions": _PLAIN,
    "WatchService.CreateWatch": Call(
        query=("lenient",),
        links={200: {"open": _link("openWatch", "Open the stream.", wid="$response.body#/wid")}},
    ),
    "WatchService.OpenWatch": Call(
        headers={"Last-Event-ID": _LAST_EVENT_ID},
        events={
            "record": "RecordEvent",
            "tombstone": "TombstoneEvent",
            "caught-up": "CaughtUpEvent",
            "topic-deleted": "TopicDeletedEvent",
            "error": "ErrorEvent",
        },
        token=True,
    ),
    "SqlService.Execute": Call(name="executeSql"),
    "SqlService.Subscribe": Call(
        name="subscribeSql",
        events={
            "snapshot": "LiveSnapshotEvent",
            "caught-up": "LiveCaughtUpEvent",
            "change": "LiveChangeEvent",
            "gap": "LiveGapEvent",
            "error": "LiveErrorEvent",
        },
    ),
    "SqlService.Consume": Call(name="consumeTopic"),
    "SqlService.Ack": Call(name="ackTopic"),
    "AdminService.GetHealth": Call(probe=True),
    "AdminService.GetReady": Call(probe=True, errors=("not_ready", "shutting_down")),
    "AdminService.GetMetrics": _PLAIN,
}
"""Every call of the HTTP API, by service and name."""

EVERYWHERE: Final = ("invalid_request", "unauthorized", "internal")
"""Errors of any call. A request that is not HTTP, or a path that is not UTF-8, is `invalid_request`."""
GUARDED: Final = ("forbidden", "throttled", "not_ready", "shutting_down")
"""Further errors of any call but a probe."""
WITH_BODY: Final = ("payload_too_large", "unsupported_media_type")
"""Further errors of any call with a body."""

EVENTS: Final[Mapping[str, tuple[str, frozenset[str]]]] = {
    "RecordEvent": ("RecordBatch", frozenset()),
    "TombstoneEvent": ("TopicTombstone", frozenset({"missed_estimate"})),
    "CaughtUpEvent": ("CaughtUp", frozenset()),
    "TopicDeletedEvent": ("TopicDeleted", frozenset()),
    "LiveSnapshotEvent": ("LiveSnapshot", frozenset()),
    "LiveCaughtUpEvent": ("LiveCaughtUp", frozenset()),
    "LiveChangeEvent": ("LiveChange", frozenset()),
    "LiveGapEvent": ("LiveGap", frozenset()),
    "ErrorEvent": ("StreamError", frozenset()),
}
"""Data of events: the message that each shows, and members that it lacks."""

_COUNT: Final = AMOUNT
METRICS: Final[Schema] = {
    "type": "object",
    "description": "Figures of the whole server; `docs/metrics.md` says what they mean. There may be more of them.",
    "properties": {
        **dict.fromkeys(
            (
                "topics", "topics_ephemeral", "topics_memory", "topics_disk", "topics_fsync", "routers", "records_live",
                "bytes_live", "queue_topics", "queue_leases_in_flight", "sse_connections", "watch_sessions",
                "uptime_ms",
            ),
            _COUNT,
        ),
        "ready": {"type": "boolean"},
        "replay_progress": {"type": "number", "minimum": 0, "maximum": 1},
        "wal": {
            "type": "object",
            "properties": {
                **dict.fromkeys(
                    (
                        "fsyncs", "frames", "batches", "bytes_written", "rotations", "queue_depth", "queue_depth_peak",
                        "submit_full_total", "fsync_count", "fsync_micros_total",
                    ),
                    _COUNT,
                ),
                "read_only": {"type": "boolean"},
            },
        },
    },
}  # fmt: skip
for _object in (METRICS, METRICS["properties"]["wal"]):
    _object["required"] = list(_object["properties"])
