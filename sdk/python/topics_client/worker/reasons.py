"""Why a handler failed, as a text that the server keeps with the job."""

from traceback import TracebackException
from typing import Final

from topics_client.worker.ack_sender import Release, RetryLater

_BYTES: Final = 4096  # the server takes no more
_HEAD_BYTES: Final = 1024
_CUT: Final = "…"


def reason_of(error: BaseException | None) -> str:
    """Type and message of what a handler raised, then the end of its traceback: at most 4096 bytes. Empty for none.

    `RetryLater` and `Release` say no more than what they were raised from.
    """
    if isinstance(error, Release | RetryLater):
        error = error.__cause__
    if error is None:
        return ""
    try:
        told = TracebackException.from_exception(error, compact=True)
        head = _first("".join(told.format_exception_only()).strip(), _HEAD_BYTES)
    except Exception:  # one whose own methods fail
        return type(error).__qualname__[:_HEAD_BYTES]
    return f"{head}\n{_last(''.join(told.format()).rstrip(), _BYTES - len(head.encode()) - 1)}"


def _first(text: str, maximum: int) -> str:
    raw = _encoded(text)
    return raw.decode() if len(raw) <= maximum else raw[: maximum - len(_CUT.encode())].decode(errors="ignore") + _CUT


def _last(text: str, maximum: int) -> str:
    raw = _encoded(text)
    return raw.decode() if len(raw) <= maximum else _CUT + raw[len(_CUT.encode()) - maximum :].decode(errors="ignore")


def _encoded(text: str) -> bytes:
    """A message may hold what UTF-8 has no form for."""
    return text.encode(errors="backslashreplace")
