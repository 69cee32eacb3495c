"""Errors, shared by all protocols.

A `TopicsError` carries a `Reason`; protocols look up its HTTP status, gRPC status name and whether a retry can help.
The codes are the stable `error.code` strings of docs/errors.md.
"""

from collections.abc import Mapping
from typing import Any

from topics_client.units import counted
from topics_service.engine.reasons import Reason as Reason  # for importers of both


class TopicsError(Exception):
    """A request was refused or failed; nothing was changed unless the message says so.

    `detail` holds JSON-ready facts (docs/contract.md, 1.5), or is absent. `retry_after_ms` is set if a retry helps.
    """

    def __init__(
        self,
        reason: Reason,
        message: str,
        detail: Mapping[str, Any] | None = None,
        *,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.detail = detail
        self.retry_after_ms = 1000 if retry_after_ms is None and reason.value.retryable else retry_after_ms


def invalid(message: str, detail: Mapping[str, Any] | None = None) -> TopicsError:
    """A malformed request: 400 `invalid_request`."""
    return TopicsError(Reason.INVALID_REQUEST, message, detail)


def topic_not_found(name: str) -> TopicsError:
    """The named topic does not exist and this call does not create it: 404 `topic_not_found`."""
    return TopicsError(Reason.TOPIC_NOT_FOUND, f'topic "{name}" does not exist', {"topic": name})


def topic_recreated(name: str, topic_id: str) -> TopicsError:
    """The topic requested by id was deleted, and another one has its name: 404 `topic_not_found`."""
    message = f'topic "{name}" has been created again: it is not the one asked for, its topic_id is {topic_id} now'
    return TopicsError(Reason.TOPIC_NOT_FOUND, message, {"topic": name})


def router_not_found(name: str) -> TopicsError:
    """The named router does not exist: 404 `router_not_found`."""
    return TopicsError(Reason.ROUTER_NOT_FOUND, f'router "{name}" does not exist', {"router": name})


def group_not_found(name: str) -> TopicsError:
    """The named consumer group does not exist: 404 `group_not_found`."""
    return TopicsError(Reason.GROUP_NOT_FOUND, f'group "{name}" does not exist', {"group": name})


def in_another_shard(name: str, partition: int | None = None) -> TopicsError:
    """The call came to a shard that has not got the topic's home, or this partition: 500 `internal`."""
    what = f'topic "{name}"' if partition is None else f'partition {partition} of topic "{name}"'
    detail: dict[str, Any] = {"topic": name, "in_another_shard": True}
    if partition is not None:
        detail["partition"] = partition
    return TopicsError(Reason.INTERNAL, f"{what} is in another shard", detail)


def is_in_another_shard(error: TopicsError, name: str) -> bool:
    """Return whether it is such an error about this topic."""
    detail = error.detail or {}
    return detail.get("in_another_shard") is True and detail.get("topic") == name


def partition_not_found(name: str, partition: int, count: int) -> TopicsError:
    """The topic has no partition of this number: 404 `partition_not_found`."""
    detail = {"topic": name, "partition": partition, "partition_count": count}
    return TopicsError(Reason.PARTITION_NOT_FOUND, f'topic "{name}" has {counted(count, "partition")}, from 0', detail)
