"""The reason of a failed handler, as a text stored with the job."""

from traceback import TracebackException
from typing import Final

from topics_client.worker.ack_sender import Release, RetryLater

_BYTES: Final = 4096  # the server's limit
_HEAD_BYTES: Final = 1024
_CUT: Final = "…"


def reason_of(error: BaseException | None) -> str:
    """Format a handler's exception: type and message, then the end of its traceback, in up to 4096 bytes. Empty for
    none.

    For `RetryLater` and `Release`, the exception they were raised from is used.
    """
    if isinstance(error, Release | RetryLater):
        error = error.__cause__
    if error is None:
        return ""
    try:
        formatted = TracebackException.from_exception(error, compact=True)
        head = _first("".join(formatted.format_exception_only()).strip(), _HEAD_BYTES)
    except Exception:  # an exception whose own methods fail
        return type(error).__qualname__[:_HEAD_BYTES]
    return f"{head}\n{_last(''.join(formatted.format()).rstrip(), _BYTES - len(head.encode()) - 1)}"


def _first(text: str, maximum: int) -> str:
    raw = _encoded(text)
    return raw.decode() if len(raw) <= maximum else raw[: maximum - len(_CUT.encode())].decode(errors="ignore") + _CUT


def _last(text: str, maximum: int) -> str:
    raw = _encoded(text)
    return raw.decode() if len(raw) <= maximum else _CUT + raw[len(_CUT.encode()) - maximum :].decode(errors="ignore")


def _encoded(text: str) -> bytes:
    """Encode text that may contain lone surrogates."""
    return text.encode(errors="backslashreplace")
