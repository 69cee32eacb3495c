"""How a subscription, a cursor and a session name one partition: `topic` for partition 0, `topic@N` for another.

No topic's name has an `@`, so a place is never taken for another topic.
"""

import re
from typing import Final

_PLACE: Final = re.compile(r"(?P<topic>[^@]*)@(?P<partition>[1-9][0-9]{0,19})")


def place_of(topic: str, partition: int) -> str:
    """The place of a partition."""
    return f"{topic}@{partition}" if partition else topic


def split_place(place: str) -> tuple[str, int]:
    """The topic and the partition of a place. What has another form than `topic@N` is a name as it stands."""
    found = _PLACE.fullmatch(place) if "@" in place else None
    return (found["topic"], int(found["partition"])) if found else (place, 0)
