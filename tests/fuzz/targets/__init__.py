"""Every decoder of bytes that come from outside or from disk, and where those are tried that are not here."""

from typing import Final

from fuzz.target import Target
from fuzz.targets import clients, cluster, operators, postgres, protocols, rows, shards, sql, storage, tables

TARGETS: Final[tuple[Target, ...]] = (
    *storage.TARGETS,
    *rows.TARGETS,
    *tables.TARGETS,
    *sql.TARGETS,
    *postgres.TARGETS,
    *protocols.TARGETS,
    *operators.TARGETS,
    *clients.TARGETS,
    *cluster.TARGETS,
    *shards.TARGETS,
)
