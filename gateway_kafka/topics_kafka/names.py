"""Topic names that are valid for Kafka clients as well as for this server."""

import re
from typing import Final

from topics_service.engine.names import is_topic_name

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)


def is_kafka_name(name: str) -> bool:
    """Return whether a Kafka client may create a topic of this name: Kafka's rule, and a letter or digit first."""
    return _NAME.fullmatch(name) is not None and is_topic_name(name)
