"""The time in which an idempotent write can be retried: while its topic is sure to remember its key. After that, a
retry would be another write."""

import time
from functools import partial
from typing import Final

from topics_client.errors import AuthError, NotFoundError, TopicsError, may_be_done
from topics_proto.v1.topics_service_pb2 import GetTopicRequest, GetTopicResponse

_DEFAULT_SECONDS: Final = 120.0  # the default of a topic
_MIN_SECONDS: Final = 1.0  # the least time for a retry
# Status codes of calls that were cut off, or whose effect the server does not know.
_BROKEN: Final = frozenset({"cancelled", "unknown", "internal", "aborted", "data_loss"})
# Errors only of writes with an unknown key: if the write were stored, the server would return its result.
_NOT_STORED: Final = frozenset({"invalid_request", "topic_full"})

# In seconds, including the time of a suspended machine if available: the server's time continues.
now = partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic


def may_be_stored(error: TopicsError) -> bool:
    """Return True if a write that failed with this error may be stored."""
    return error.reason in _BROKEN or may_be_done(error)


def proves_absence(error: TopicsError) -> bool:
    """Return True if a retry's error proves that no attempt of the write was stored."""
    return error.reason in _NOT_STORED


def question(topic: str) -> GetTopicRequest:
    """The request to make before each retry of a write with an unknown outcome: the topic may have been recreated."""
    return GetTopicRequest(topic=topic, touch=False)


def seconds(answer: GetTopicResponse | TopicsError) -> float:
    """The seconds for which the topic remembers keys, from the response to the question. Raises any other error."""
    if isinstance(answer, GetTopicResponse):
        return answer.state.config.idempotency_window_ms / 1e3
    if isinstance(answer, NotFoundError):
        return float("inf")  # the write is nowhere
    if isinstance(answer, AuthError):
        return _DEFAULT_SECONDS  # the key may write only
    raise answer


def left(lost_at: float, window: float) -> float:
    """The seconds left to retry a write first sent, and lost, at `lost_at`. Raises TopicsError (outcome_unknown) if the
    time is up; not UnavailableError, which would invite a retry."""
    found = lost_at + window - now()
    if found < _MIN_SECONDS:
        raise TopicsError(
            "outcome_unknown",
            "the answer to a write was lost, and the topic may not know its key any more "
            f"(idempotency_window_ms, {window:g} s): look whether it is there before you make it again",
        )
    return found
