"""Classification of failures: those that end a worker, and those it retries."""

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
    """Return the error as UnavailableError if a retry may help, such as for a server that stops during a call;
    otherwise None."""
    if isinstance(error, UnavailableError):
        return error
    # An error without a call as its cause means that the client was closed.
    if (
        not isinstance(error, TopicsError)
        or isinstance(error, _PERMANENT)
        or not isinstance(error.__context__, RpcError)
    ):
        return None
    return UnavailableError(error.reason, error.message, error.detail, error.retry_after_ms)
