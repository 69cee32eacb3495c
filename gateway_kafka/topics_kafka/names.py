"""Topic names that are right for Kafka clients and for the topics service."""

import re
from typing import Final

from topics_service.engine.names import is_topic_name

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)


def is_kafka_name(name: str) -> bool:
    """Whether a Kafka client may create a topic of this name: by Kafka's rule, and beginning with a letter or digit."""
    return _NAME.fullmatch(name) is not None and is_topic_name(name)
