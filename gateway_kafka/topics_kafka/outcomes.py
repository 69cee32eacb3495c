"""Where responses say what went wrong."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from topics_kafka.protocol import ApiKey, Message

# The arrays, one inside the other, whose members have error codes. The versions of one API may name them differently.
_PATHS: Final[Mapping[ApiKey, tuple[tuple[str, ...], ...]]] = {
    ApiKey.PRODUCE: (("responses", "partition_responses"),),
    ApiKey.FETCH: (("responses", "partitions"),),
    ApiKey.LIST_OFFSETS: (("topics", "partitions"),),
    ApiKey.METADATA: (("topics",),),
    ApiKey.OFFSET_COMMIT: (("topics", "partitions"),),
    ApiKey.OFFSET_FETCH: (("groups", "topics", "partitions"), ("topics", "partitions")),
    ApiKey.FIND_COORDINATOR: (("coordinators",),),
    ApiKey.LEAVE_GROUP: (("members",),),
    ApiKey.DESCRIBE_GROUPS: (("groups",),),
    ApiKey.CREATE_TOPICS: (("topics",),),
    ApiKey.DELETE_TOPICS: (("responses",),),
    ApiKey.DELETE_RECORDS: (("topics", "partitions"),),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (("topics", "partitions"),),
    ApiKey.DESCRIBE_CONFIGS: (("results",),),
    ApiKey.ALTER_CONFIGS: (("responses",),),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (("responses",),),
    ApiKey.DESCRIBE_LOG_DIRS: (("results",),),
    ApiKey.CREATE_PARTITIONS: (("results",),),
    ApiKey.DELETE_GROUPS: (("results",),),
    ApiKey.OFFSET_DELETE: (("topics", "partitions"),),
    ApiKey.DESCRIBE_PRODUCERS: (("topics", "partitions"),),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (("groups",),),
}


def error_codes(api: ApiKey, response: Message) -> Iterator[int]:
    """The error codes other than 0 in a response: of the whole, and of each topic, partition, group and the like."""
    code = response.get("error_code")
    if code:
        yield code
    for path in _PATHS.get(api, ()):
        yield from _below(response, path)


def _below(message: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[int]:
    for entry in message.get(path[0]) or ():
        code = entry.get("error_code")
        if code:
            yield code
        if len(path) > 1:
            yield from _below(entry, path[1:])
