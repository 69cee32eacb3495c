"""Kafka requests as spans, with the names of the topic registry's specification where it has one."""

import asyncio
from functools import partial
from typing import Final

from topics_kafka.handlers import Context
from topics_kafka.protocol import ApiKey, ErrorCode, Message
from topics_kafka.registry import error_codes
from topics_server.interceptors import KafkaEnd
from topics_server.tracing.spans import CallSpan, Spans, named

# spec/rafka-topic-registry.txt, "Span emit sites" and "Admin handler span emit sites".
_GIVEN: Final = {
    ApiKey.DELETE_TOPICS: "rafka.gateway.topic.delete.via-wire",
    ApiKey.DESCRIBE_CONFIGS: "rafka.gateway.topic.describe-configs",
    ApiKey.ALTER_CONFIGS: "rafka.gateway.topic.alter-configs",
    ApiKey.METADATA: "rafka.gateway.kafka.metadata",
}
_PREFIX: Final = "rafka.gateway.kafka."
_LISTS: Final = ("topics", "topic_data", "topic_names")
_ERRORS: Final = {code.value: code.name for code in ErrorCode}
_OURS: Final = frozenset({ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.KAFKA_STORAGE_ERROR})


def span_name(api: ApiKey) -> str:
    """That of the span of a request."""
    return _GIVEN.get(api) or _PREFIX + api.name.lower().replace("_", "-")


class KafkaSpans:
    """Makes a span of every Kafka request, until its response is there."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans

    def __call__(self, api: ApiKey, version: int, context: Context, request: Message) -> KafkaEnd | None:
        span = self._spans.begin(span_name(api), _attributes(api, version, context, request))
        return None if span is None else partial(_end, span, api)


def _end(span: CallSpan, api: ApiKey, response: Message | None, error: BaseException | None) -> None:
    codes = list(error_codes(api, response)) if response is not None else []
    if isinstance(error, asyncio.CancelledError):
        span.span.set_attribute("topics.gone", True)
    elif error is not None:
        span.fail(type(error).__name__, ours=True)
    elif codes:
        worst = next((code for code in codes if code in _OURS), codes[0])
        span.fail(_ERRORS.get(worst, str(worst)), ours=worst in _OURS)
        span.span.set_attribute("topics.kafka.errors", len(codes))
    span.end()


def _attributes(api: ApiKey, version: int, context: Context, request: Message) -> dict[str, str | int | bool]:
    attributes: dict[str, str | int | bool] = {
        "messaging.system": "kafka",
        "messaging.operation.name": api.name.lower(),
        "topics.kafka.api_key": api.value,
        "topics.kafka.api_version": version,
    }
    if context.client_id:
        attributes["messaging.client.id"] = named(context.client_id)
    if group := request.get("group_id"):
        attributes["messaging.consumer.group.name"] = named(group)
    if api is ApiKey.METADATA:
        attributes["auto_create"] = bool(request.get("allow_auto_topic_creation", True))
    names = [each if isinstance(each, str) else _name(each) for key in _LISTS for each in request.get(key) or ()]
    if len(names) == 1 and names[0]:
        attributes["messaging.destination.name"] = named(names[0])
    elif names:
        attributes["topics.kafka.topics"] = len(names)
    return attributes


def _name(entry: Message) -> str:
    return next((entry[key] for key in ("name", "topic") if isinstance(entry.get(key), str)), "")
