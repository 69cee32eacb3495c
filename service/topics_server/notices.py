"""Log lines for the operator: addresses, protection, memory, and the outcome of a shutdown."""

import logging
import time
from pathlib import Path
from typing import NamedTuple

from topics_client.units import counted, human_size
from topics_server import memory
from topics_server.ports import bracketed
from topics_server.settings import Settings, default
from topics_service import __version__
from topics_service.storage.private import open_to
from topics_service.storage.store import StoreError

log = logging.getLogger("topics.server")


class Shutdown(NamedTuple):
    """Outcome of serving.

    `began` is the monotonic time of the stop, in seconds; `is_sound`: the storage works; `is_recovered`: recovery was
    complete. `kept` topics keep their records, `forgotten` (ephemeral) ones do not.
    """

    began: float
    is_sound: bool
    is_recovered: bool
    kept: int
    forgotten: int


def log_listening(settings: Settings, http_port: int, grpc_port: int) -> None:
    """Log the addresses, and whatever leaves the server less protected than it could be."""
    scheme, tls = ("https", " with TLS") if settings.tls_cert_file else ("http", "")
    host = bracketed(settings.host)
    log.info("topics %s: HTTP %s://%s:%d, gRPC %s:%d%s", __version__, scheme, host, http_port, host, grpc_port, tls)
    log.info("data in %s", settings.data_path)
    _log_memory(settings)
    _warn_of_open_files(settings)
    if not settings.has_authentication:
        log.warning("authentication is disabled: any client that can connect has full access")
    else:
        log.info("authentication is on, with %s", _credentials(settings))


def _credentials(settings: Settings) -> str:
    kinds = [
        "" if settings.api_keys is None else counted(len(settings.api_keys), "API key"),
        "" if settings.sql_users is None else counted(len(settings.sql_users), "user"),
        "" if settings.jwt_secret is None else f"{settings.jwt_secret.algorithm} tokens",
    ]
    return ", ".join(filter(None, kinds))


def log_stopped(shutdown: Shutdown, unwritten: StoreError | None) -> None:
    """Log the duration of the stop and the state for the next start. `unwritten` is why the store did not close
    cleanly.
    """
    seconds = time.monotonic() - shutdown.began
    if not shutdown.is_sound:
        log.warning("stopped after %.1f s, read-only: acknowledged writes are in the write-ahead log", seconds)
    elif unwritten is not None:
        log.warning("stopped after %.1f s: the next start replays the write-ahead log (%s)", seconds, unwritten)
    elif not shutdown.is_recovered:
        log.info("stopped after %.1f s, before recovery was complete: the next start repeats it", seconds)
    else:
        count = shutdown.forgotten
        lost = f"; the records of {counted(count, 'ephemeral topic')} are gone" if count else ""
        log.info("stopped after %.1f s: %s saved%s", seconds, counted(shutdown.kept, "topic"), lost)


def _log_memory(settings: Settings) -> None:
    available = memory.limit()
    if available is None:
        return
    if settings.memory_bytes > available:
        log.warning(
            "TOPICS_MEMORY_BYTES is %s, and the process may have %s: it will be killed when it takes more",
            human_size(settings.memory_bytes), human_size(available),
        )  # fmt: skip
    elif settings.memory_bytes < default("memory_bytes") or settings.max_body_bytes < default("max_body_bytes"):
        log.info(
            "memory: the process may have %s; TOPICS_MEMORY_BYTES is %s, TOPICS_MAX_BODY_BYTES %s",
            human_size(available), human_size(settings.memory_bytes), human_size(settings.max_body_bytes),
        )  # fmt: skip


def _warn_of_open_files(settings: Settings) -> None:
    """Log secrets that other users of the machine may read. Their modes stay as the operator set them."""
    if others := open_to(settings.data_path):
        log.warning("the data directory %s is open to %s: chmod 700 closes it", settings.data_path, others)
    secrets = (
        settings.api_keys_file,
        settings.sql_users_file,
        "" if settings.audit_log == "-" else settings.audit_log,
        settings.tls_key_file or settings.tls_cert_file,  # the key may be in the certificate's file
        settings.kafka_tls_key or settings.kafka_tls_cert,
    )
    for file in secrets:
        if file and open_to(Path(file)) == "everyone":
            log.warning("%s may be read by everyone on this machine: chmod 600 closes it", file)
