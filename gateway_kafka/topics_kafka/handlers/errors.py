"""Translation of the server's errors to Kafka's error codes."""

from collections.abc import Mapping, Sequence
from typing import Final

from topics_kafka.protocol import ErrorCode
from topics_service.engine.errors import Reason, TopicsError

# Keyed by the reason's code: a reason that is missing here becomes UNKNOWN_SERVER_ERROR.
#
# `throttled` and `topic_full` must make producers wait and retry: Kafka's form of backpressure. NOT_ENOUGH_REPLICAS is
# the only code that every client retries and treats as "not written": librdkafka counts a record that got
# REQUEST_TIMED_OUT as possibly written, and most clients do not retry THROTTLING_QUOTA_EXCEEDED on Produce. The time
# for which they retry is their own setting (delivery.timeout.ms).
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
    "not_ready": ErrorCode.LEADER_NOT_AVAILABLE,
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


def error_of(error: TopicsError) -> ErrorCode:
    """The code for a topic or partition in Produce, Fetch and similar APIs. Retriable if a retry may help."""
    return _CODES.get(error.reason.code, ErrorCode.UNKNOWN_SERVER_ERROR)


def group_error_of(error: TopicsError) -> ErrorCode:
    """The code in the group APIs."""
    return _GROUP_CODES.get(error.reason.code) or error_of(error)


def admin_error_of(error: TopicsError) -> ErrorCode:
    """The code in the APIs that create, change and delete topics.

    A limit of the server that a retry can't lift is POLICY_VIOLATION.
    """
    if error.reason is Reason.THROTTLED and (error.detail or {}).get("limit") == "max_topics":
        return ErrorCode.POLICY_VIOLATION
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
