"""For how long a write may be made again: as long as its topic is sure to know its key. After that it would be another
write."""

import time
from functools import partial
from typing import Final

from topics_client.errors import AuthError, NotFoundError, TopicsError, may_be_done
from topics_proto.v1.topics_service_pb2 import GetTopicRequest, GetTopicResponse

_DEFAULT_SECONDS: Final = 120.0  # of a topic that is not configured otherwise
_MIN_SECONDS: Final = 1.0  # that a repeat is given
# What gRPC says of calls that broke off, and the server of one whose effect it can't vouch for.
_BROKEN: Final = frozenset({"cancelled", "unknown", "internal", "aborted", "data_loss"})
# What a server says only of a write whose key it does not know: had it been stored, it would have said so.
_NOT_STORED: Final = frozenset({"invalid_request", "topic_full"})

# In seconds; a machine that sleeps counts too, where that can be had: the server's time goes on.
now = partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic


def may_be_stored(error: TopicsError) -> bool:
    """Whether a write may be stored whose call failed so."""
    return error.reason in _BROKEN or may_be_done(error)


def proves_absence(error: TopicsError) -> bool:
    """Whether a write is not stored whose repeat failed so, whatever became of the attempts before."""
    return error.reason in _NOT_STORED


def question(topic: str) -> GetTopicRequest:
    """What to ask the server for before a write is made again whose outcome nobody knows. Each time: the topic may be
    another one by now."""
    return GetTopicRequest(topic=topic, touch=False)


def seconds(answer: GetTopicResponse | TopicsError) -> float:
    """For how long the topic knows keys, by the answer to the question. Raises an answer that is none."""
    if isinstance(answer, GetTopicResponse):
        return answer.state.config.idempotency_window_ms / 1e3
    if isinstance(answer, NotFoundError):
        return float("inf")  # the write is nowhere
    if isinstance(answer, AuthError):
        return _DEFAULT_SECONDS  # the key may write only
    raise answer


def left(lost_at: float, window: float) -> float:
    """For how many seconds a write may be made again that was sent for the first time, and lost, at `lost_at`. Raises
    TopicsError (outcome_unknown) if the time is up: no UnavailableError, which invites to write it again."""
    found = lost_at + window - now()
    if found < _MIN_SECONDS:
        raise TopicsError(
            "outcome_unknown",
            "the answer to a write was lost, and the topic may not know its key any more "
            f"(idempotency_window_ms, {window:g} s): look whether it is there before you make it again",
        )
    return found
