"""File descriptors: each connection and each file of the database takes one of a limited number."""

import resource
from dataclasses import replace
from typing import Final

from topics_server.settings import Settings

MIN_DESCRIPTORS: Final = 256
_WANTED: Final = 65536
_PROCESS: Final = 96  # the server without clients, its logs, and some for a backup
_MAX_TABLES: Final = 1000


class TooFewError(Exception):
    """The process may open too few files to serve; the message is for the operator."""


def share(settings: Settings) -> tuple[Settings, int]:
    """Take as many descriptors as the system grants, and share them out.

    Returns the settings with connection caps that leave enough descriptors for the database (a table or log that can't
    be opened makes the server read-only), and the number of tables that the database may keep open. Raises TooFewError.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _WANTED if hard == resource.RLIM_INFINITY else min(_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    limit = limit if soft == resource.RLIM_INFINITY else max(limit, soft)
    if limit < MIN_DESCRIPTORS:
        raise TooFewError(f"the process may open {limit} files (ulimit -Hn), it needs at least {MIN_DESCRIPTORS}")
    tables = min(_MAX_TABLES, limit // 4)
    connections = limit - _PROCESS - tables
    http, grpc, kafka = connections * 6 // 10, connections * 2 // 10, connections * 2 // 10
    postgres = 0
    if settings.pg_port:  # a part of that of HTTP
        postgres = http // 3
        http -= postgres
    return replace(
        settings,
        max_connections=min(settings.max_connections or http, http),
        grpc_max_connections=min(settings.grpc_max_connections or grpc, grpc),
        kafka_max_connections=min(settings.kafka_max_connections or kafka, kafka),
        pg_max_connections=min(settings.pg_max_connections or postgres, postgres),
    ), tables
