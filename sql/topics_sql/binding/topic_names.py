"""Topics that statements name."""

from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.tables.schema import TopicName
from topics_sql.binding.scope import Context
from topics_sql.syntax import ObjectName


def look_up(context: Context, name: ObjectName) -> TopicName | None:
    """The topic of a name or an alias: as written in full, else in the namespace of the request (D24)."""
    full = ".".join(name.parts)
    return context.schema.topic(full) or context.schema.topic(f"{context.namespace}.{full}")


def find_topic(context: Context, name: ObjectName) -> TopicName:
    """The topic of a name. Raises `topic_not_found`."""
    found = look_up(context, name)
    if found is None:
        raise topic_not_found(context, name)
    return found


def topic_not_found(context: Context, name: ObjectName) -> TopicsError:
    """Make the error of a topic that is not there."""
    full = ".".join(name.parts)
    error = context.refuse(name.at, f"topic {full} does not exist", Reason.TOPIC_NOT_FOUND)
    assert isinstance(error.detail, dict)
    error.detail["topic"] = full
    return error
