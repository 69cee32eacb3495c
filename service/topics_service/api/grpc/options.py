"""Options and log filters shared by all gRPC servers."""

import logging


def server_options(
    max_message_bytes: int, max_connections: int = 0, *, is_shared: bool = False
) -> list[tuple[str, int]]:
    """The options of a server with limits of request bytes and connections; 0 is no limit. Its port is for it alone
    unless it `is_shared`."""
    return [
        *([("grpc.max_allowed_incoming_connections", max_connections)] if max_connections else []),
        ("grpc.so_reuseport", int(is_shared)),  # else a second server shares the port and takes half of the calls
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", -1),
        # The defaults drop clients that ping more often than every five minutes, or without a call.
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # A peer that vanished without a word is found out, and its streams end.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def filter_logs() -> None:
    """Drop events that need no log line. Once is enough."""
    logging.getLogger("grpc._cython.cygrpc").addFilter(_worth_a_log)


def _worth_a_log(record: logging.LogRecord) -> bool:
    """Not that a client left while a message was on its way to it, which gRPC takes for an error of the handler."""
    return not record.getMessage().startswith("ExecuteBatchError raised in core")
