"""The reference of the Python SDK: the page of each public name. Its text is its docstring."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import topics_client

_FOLDER: Final = "reference/python"
_CALLS: Final = {
    "Topics": ("put_topic", "get_topic", "list_topics", "delete_topic"),
    "Write": ("append", "append_many", "producer"),
    "Read": ("read", "watch", "diff", "read_arrow", "locate_time"),
    "Delete": ("delete_records",),
    "Queues": ("worker", "claim", "ack", "nack", "extend", "redrive", "list_jobs"),
    "Routers": ("put_router", "get_router", "list_routers", "delete_router"),
    "SQL": ("sql", "sql_script", "sql_many", "subscribe", "consume", "acknowledge"),
    "Groups": ("commit_positions", "fetch_positions", "reset_positions", "list_groups", "delete_group"),
    "The server": ("ready", "metrics", "address", "connection", "close"),
}
"""Calls of the client by the heading that they stand under."""
_PAGES: Final[Mapping[str, tuple[str, str, Sequence[str]]]] = {
    "streams": (
        "Streams",
        "The results of `read`, `watch` and `read_arrow` of [the client](client.md).",
        (
            *("ReadStream", "WatchStream", "ArrowStream", "AsyncReadStream", "AsyncWatchStream", "AsyncArrowStream"),
            *("ReadOptions", "WatchOptions"),
        ),
    ),
    "producer": (
        "Producer",
        "Appends in the background, in batches.",
        ("Producer", "AsyncProducer", "producer.batch.Limits", "Delivery", "ProducerStatistics", "ProducerOptions"),
    ),
    "worker": (
        "Workers",
        "Call a handler for each job of a queue.",
        ("Worker", "AsyncWorker", "Release", "RetryLater", "Backoff", "WorkerStatistics", "WorkerOptions"),
    ),
    "values": (
        "Values",
        "Arguments and results of calls. All are immutable; times are milliseconds since the Unix epoch (`_ts_ms`).",
        (
            *("NewRecord", "Headers", "RawJson", "Appended", "Record", "Page", "Deleted"),
            *("Gap", "CaughtUp", "TopicDeleted", "Advice", "Event"),
            *("TopicConfig", "TopicPut", "TopicInfo", "TopicSummary", "PartitionInfo", "QueueCounts"),
            *("Job", "JobView", "Attempt", "JobState", "Settled"),
            *("RouterConfig", "RouterInfo", "RouterSummary", "GroupPosition", "GroupSummary"),
        ),
    ),
    "sql": (
        "SQL",
        "Results of statements, messages of topics, and live queries.",
        (
            *("SqlResult", "SqlColumn", "Messages", "Message", "MessageGap", "MessageClaim"),
            *("LiveStream", "AsyncLiveStream", "LiveEvent", "LiveSnapshot", "LiveCaughtUp", "LiveChange", "LiveGap"),
        ),
    ),
    "codecs": ("Codecs", "Values of types of one's own.", ("Codec", "JsonCodec")),
    "errors": (
        "Errors",
        "Exceptions of calls. [Errors](../../errors.md) lists the values of `TopicsError.reason`.",
        (
            *("TopicsError", "InvalidRequestError", "AuthError", "NotFoundError", "ConflictError", "ConnectError"),
            *("UnavailableError", "GapError", "DecodeError"),
        ),
    ),
    "connection": (
        "Addresses and retries",
        "The address of the server, and the retries of a client.",
        ("Address", "Retry"),
    ),
}
"""Other pages by file name: title, introduction, public names. A name that does not exist is left out; one with
a dot is a name in a module, not public by itself."""
_MEMBERS: Final = {
    "Producer": "[append, try_append, flush, close, statistics]",
    "producer.batch.Limits": "false",
}
"""Members shown, of classes with more than their users need."""


def python_pages() -> dict[str, str]:
    """Markdown by the address of the page. Raises ValueError for a public name that has no place."""
    names = set(dir(topics_client))
    placed = {name for _, _, page in _PAGES.values() for name in page} | {"TopicsClient", "AsyncTopicsClient"}
    if names - placed:
        raise ValueError(f"public names of topics_client without a page in {__file__}: {sorted(names - placed)}")
    pages = {
        f"{_FOLDER}/client.md": _client("TopicsClient", "The client", ""),
        f"{_FOLDER}/async-client.md": _client(
            "AsyncTopicsClient",
            "The client for asyncio",
            "The calls of [the client](client.md), to be awaited. Streams are read by `async for`.\n\n",
        ),
    }
    for page, (title, introduction, wanted) in _PAGES.items():
        blocks = "".join(
            _block(name, members=_MEMBERS.get(name, "null"), inherited_members="true")
            for name in wanted
            if name in names or "." in name
        )
        pages[f"{_FOLDER}/{page}.md"] = f"# {title}\n\n{introduction}\n\n{blocks}"
    return pages


def _client(name: str, title: str, introduction: str) -> str:
    calls = {call for call in dir(getattr(topics_client, name)) if not call.startswith("_")}
    if unplaced := calls.difference(*_CALLS.values()):
        raise ValueError(f"calls of {name} without a place in {__file__}: {sorted(unplaced)}")
    return f"# {title}\n\n{introduction}" + "".join(_calls(name, calls))


def _calls(name: str, there: set[str]) -> Iterator[str]:
    yield _block(name, members="[__init__]", inherited_members="true", show_bases="false")
    for heading, wanted in _CALLS.items():
        yield f"## {heading}\n\n"
        for call in wanted:
            if call in there:
                yield _block(f"{name}.{call}", heading_level="3")


def _block(name: str, **options: str) -> str:
    lines = "".join(f"      {option}: {value}\n" for option, value in options.items())
    return f"::: topics_client.{name}\n    options:\n{lines}\n"
