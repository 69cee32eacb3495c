"""Translation of the server's errors to Kafka's error codes."""

from collections.abc import Mapping, Sequence
from typing import Final

from topics_kafka.protocol import ErrorCode
from topics_service.api.kafka import UnknownOutcomeError, UnreachableError
from topics_service.engine.errors import Reason, TopicsError

# Keyed by the reason's code: a reason that is missing here becomes UNKNOWN_SERVER_ERROR.
#
# `throttled` and `topic_full` must make producers wait and retry: Kafka's form of backpressure. NOT_ENOUGH_REPLICAS is
# the only code that every client retries and treats as "not written": librdkafka counts a record that got
# REQUEST_TIMED_OUT as possibly written, and most clients do not retry THROTTLING_QUOTA_EXCEEDED on Produce. The time
# for which they retry is their own setting (delivery.timeout.ms).
#
# `not_ready` says that a shard can't be reached, so nothing was written: clients have to look for its leader again.
# That is NOT_LEADER_OR_FOLLOWER, since the Java consumer ends at a LEADER_NOT_AVAILABLE in Fetch. Groups then have an
# UnreachableError, which is NOT_COORDINATOR: the only code of its kind that the Java client retries in all APIs. A call
# that was lost with its shard may have been written, as REQUEST_TIMED_OUT says: all clients retry it, and librdkafka
# does not report such a record as "not written" should the time for retries run out.
_CODES: Final[Mapping[str, ErrorCode]] = {
    "invalid_request": ErrorCode.INVALID_REQUEST,
    "batch_too_large": ErrorCode.MESSAGE_TOO_LARGE,
    "record_too_large": ErrorCode.MESSAGE_TOO_LARGE,
    "payload_too_large": ErrorCode.MESSAGE_TOO_LARGE,
    "unauthorized": ErrorCode.SASL_AUTHENTICATION_FAILED,
    "forbidden": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    "topic_not_found": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    "partition_not_found": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    "group_not_found": ErrorCode.GROUP_ID_NOT_FOUND,
    "topic_exists_incompatible": ErrorCode.INVALID_REQUEST,
    "topic_full": ErrorCode.NOT_ENOUGH_REPLICAS,
    "throttled": ErrorCode.NOT_ENOUGH_REPLICAS,
    "internal": ErrorCode.KAFKA_STORAGE_ERROR,
    "not_ready": ErrorCode.NOT_LEADER_OR_FOLLOWER,
    "shutting_down": ErrorCode.NOT_LEADER_OR_FOLLOWER,
}
_GROUP_CODES: Final[Mapping[str, ErrorCode]] = {
    "forbidden": ErrorCode.GROUP_AUTHORIZATION_FAILED,
    "group_not_empty": ErrorCode.NON_EMPTY_GROUP,
    "throttled": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    "internal": ErrorCode.COORDINATOR_NOT_AVAILABLE,
    "not_ready": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    "shutting_down": ErrorCode.NOT_COORDINATOR,
}
_ADMIN_CODES: Final[Mapping[str, ErrorCode]] = {
    "invalid_value": ErrorCode.INVALID_CONFIG,  # an ephemeral topic with sources
    "throttled": ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    "topic_full": ErrorCode.POLICY_VIOLATION,
    "not_ready": ErrorCode.NOT_CONTROLLER,
    "shutting_down": ErrorCode.NOT_CONTROLLER,
}


LED: Final = frozenset((ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH))
"""Codes in Produce and Fetch with which a response may name the leader."""


def error_of(error: TopicsError) -> ErrorCode:
    """The code for a topic or partition in Produce, Fetch and similar APIs. Retriable if a retry may help."""
    if isinstance(error, UnknownOutcomeError):
        return ErrorCode.REQUEST_TIMED_OUT
    return _CODES.get(error.reason.code, ErrorCode.UNKNOWN_SERVER_ERROR)


def group_error_of(error: TopicsError) -> ErrorCode:
    """The code in the group APIs, whose calls may be repeated."""
    if isinstance(error, UnreachableError):
        return ErrorCode.NOT_COORDINATOR
    return _GROUP_CODES.get(error.reason.code) or error_of(error)


def positions_error_of(error: TopicsError) -> ErrorCode:
    """The code in OffsetFetch. At a NOT_COORDINATOR there librdkafka's consumer gives up, and its admin client crashes;
    all clients repeat the request to the same broker at a COORDINATOR_LOAD_IN_PROGRESS, and any broker answers."""
    code = group_error_of(error)
    return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if code is ErrorCode.NOT_COORDINATOR else code


def list_error_of(error: TopicsError) -> ErrorCode:
    """The code in ListGroups, which no coordinator has to answer."""
    code = group_error_of(error)
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if code is ErrorCode.NOT_COORDINATOR else code


def id_error_of(error: TopicsError) -> ErrorCode:
    """The code in InitProducerId."""
    return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if error.reason is Reason.NOT_READY else error_of(error)


def admin_error_of(error: TopicsError) -> ErrorCode:
    """The code in the APIs that create, change and delete topics.

    A limit of the server that a retry can't lift is POLICY_VIOLATION.
    """
    if error.reason is Reason.THROTTLED and (error.detail or {}).get("limit") == "max_topics":
        return ErrorCode.POLICY_VIOLATION
    if isinstance(error, UnknownOutcomeError):
        return ErrorCode.REQUEST_TIMED_OUT
    return _ADMIN_CODES.get(error.reason.code) or error_of(error)


class RefusedError(Exception):
    """One entry of a request, such as a topic, is refused with an error code and a message.

    For a record batch, `records` are the positions and errors of the invalid records.
    """

    def __init__(self, code: ErrorCode, message: str, records: Sequence[tuple[int, str]] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.records = records
        self.result = {"error_code": code, "error_message": message}
        """The members of a response that report it."""
