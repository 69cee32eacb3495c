"""Topic partitions as text, the keys of subscriptions, cursors and sessions: `topic` for partition 0, else `topic@N`.

No topic's name contains `@`, so the two forms can't be confused.
"""

import re
from typing import Final

_PATTERN: Final = re.compile(r"(?P<topic>[^@]*)@(?P<partition>[1-9][0-9]{0,19})")


def format_topic_partition(topic: str, partition: int) -> str:
    """Return the text form of a topic partition."""
    return f"{topic}@{partition}" if partition else topic


def parse_topic_partition(text: str) -> tuple[str, int]:
    """Return topic and partition; text that is not of the form `topic@N` is a topic's name as it stands."""
    found = _PATTERN.fullmatch(text) if "@" in text else None
    return (found["topic"], int(found["partition"])) if found else (text, 0)
