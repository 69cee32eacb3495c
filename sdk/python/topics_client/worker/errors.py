"""Which failures end a worker, and which it lives through."""

from typing import Final

from grpc import RpcError

from topics_client.errors import (
    AuthError,
    ConflictError,
    ConnectError,
    InvalidRequestError,
    NotFoundError,
    TopicsError,
    UnavailableError,
)

_PERMANENT: Final = (AuthError, ConflictError, ConnectError, InvalidRequestError, NotFoundError)


def passes(error: Exception) -> UnavailableError | None:
    """The error as one to wait after, if it may be gone later, such as that of a server that stops in the middle of a
    call; None if no repetition helps."""
    if isinstance(error, UnavailableError):
        return error
    # An error that no call is the cause of tells of a client that was closed.
    if (
        not isinstance(error, TopicsError)
        or isinstance(error, _PERMANENT)
        or not isinstance(error.__context__, RpcError)
    ):
        return None
    return UnavailableError(error.reason, error.message, error.detail, error.retry_after_ms)
