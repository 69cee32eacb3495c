"""The wire protocol of the Kafka listener: frames to messages and back, API keys, error codes."""

from topics_kafka.protocol.codec import decode_request, decode_response, encode_request, encode_response, request_header
from topics_kafka.protocol.decoding import Message
from topics_kafka.protocol.errors import ErrorCode, MalformedError
from topics_kafka.protocol.versions import SUPPORTED, ApiKey

__all__ = [
    "SUPPORTED",
    "ApiKey",
    "ErrorCode",
    "MalformedError",
    "Message",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
    "request_header",
]
