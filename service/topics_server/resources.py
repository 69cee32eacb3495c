"""Resources that a server acquires before it serves: descriptors, certificates, files, sockets and the store."""

import contextlib
import copy
import socket
from dataclasses import replace
from typing import Final, Self

from topics_server import tracing
from topics_server.audit import AuditFile
from topics_server.descriptors import TooFewError, share
from topics_server.errors import StartError
from topics_server.notices import log
from topics_server.ports import bind
from topics_server.settings import Settings
from topics_server.tls import ServerCertificates, TlsError, certificates
from topics_server.tracing.noop import Tracing
from topics_service.storage import shardfiles
from topics_service.storage.boot import boot_id
from topics_service.storage.rocks import RocksStore
from topics_service.storage.store import StoreError

_LEAST_TABLES: Final = 32


class Resources:
    """Open files, bound sockets and the open store of one server. `settings` has its shares of the descriptors, of
    which the store may use `tables`. Where it `shares_ports`, other processes listen on the same."""

    settings: Settings
    tables: int
    certificates: ServerCertificates
    audit_file: AuditFile | None
    traces: Tracing
    http_socket: socket.socket
    kafka_socket: socket.socket | None
    pg_socket: socket.socket | None
    store: RocksStore
    shares_ports = False

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._opens_store = True

    @classmethod
    def open(
        cls,
        settings: Settings,
        store: RocksStore | None = None,
        *,
        opens_store: bool = True,
        shares_ports: bool = False,
    ) -> Self:
        """Take everything, or nothing. A given `store` is the open one in `settings.data_path`; without `opens_store`
        there is none.

        Blocks for as long as RocksDB takes. Raises StartError.
        """
        if opens_store:
            _check_unsharded(settings)
        self = cls()
        self.shares_ports = shares_ports
        with self._stack as stack:
            try:
                self.settings, self.tables = share(settings)
                self.certificates = certificates(self.settings)
            except (TooFewError, TlsError) as error:
                raise StartError(str(error)) from None
            self.audit_file = _open_audit_file(self.settings)
            if self.audit_file is not None:
                stack.callback(self.audit_file.close)
            try:
                self.traces = tracing.start(asked=self.settings.tracing)
            except tracing.TracingError as error:
                raise StartError(str(error)) from None
            stack.callback(self.traces.stop)
            self.http_socket = stack.enter_context(
                bind(settings.host, settings.port, "TOPICS_PORT", is_shared=shares_ports)
            )
            self.kafka_socket = None
            if settings.kafka_port:
                port = int(settings.kafka_port)
                kafka_socket = bind(settings.host, port, "TOPICS_KAFKA_PORT", is_shared=shares_ports)
                self.kafka_socket = stack.enter_context(kafka_socket)
            self.pg_socket = None
            if settings.pg_port:
                pg_socket = bind(settings.host, int(settings.pg_port), "TOPICS_PG_PORT", is_shared=shares_ports)
                self.pg_socket = stack.enter_context(pg_socket)
            self._opens_store = opens_store
            if opens_store:
                self.store = store or open_store(self.settings, self.tables)
            self._stack = stack.pop_all()
        return self

    def for_shard(self, shard: int, count: int) -> Self:
        """The resources of one of `count` shards in this process: the same, but with a directory of its own, and with
        its part of the memory, the retained log and the open files. They end with these."""
        made = copy.copy(self)
        path = shardfiles.directory(self.settings.data_path, shard)
        made.settings = replace(
            self.settings,
            data_dir=str(path),
            memory_bytes=self.settings.memory_bytes // count,
            wal_archive_bytes=self.settings.wal_archive_bytes // count,
        )
        made.tables = max(_LEAST_TABLES, self.tables // count)
        return made

    def close(self, *, is_sound: bool) -> StoreError | None:
        """Flush memory to disk and release everything. Blocks. Returns the error if the write failed.

        After a storage failure (not `is_sound`) nothing is written: a flush would only fail, or write to a removed
        directory.
        """
        with self._stack:
            if not self._opens_store:
                return None
            try:
                if is_sound:
                    self.store.close()
                else:
                    self.store.abandon()
            except StoreError as error:
                return error
        return None


def _open_audit_file(settings: Settings) -> AuditFile | None:
    try:
        return AuditFile(settings.audit_log) if settings.audit_log else None
    except OSError as error:
        raise StartError(f"TOPICS_AUDIT_LOG {settings.audit_log}: {error.strerror}") from None


def _check_unsharded(settings: Settings) -> None:
    """Raise StartError for a data directory with shards."""
    try:
        count = shardfiles.count_of(settings.data_path)
    except StoreError as error:
        raise StartError(str(error)) from None
    if count is not None:
        raise StartError(
            f"the data directory {settings.data_path} has {count} shards: serve it with --processes 1 to {count} "
            "(TOPICS_PROCESSES)"
        )


def open_store(settings: Settings, tables: int) -> RocksStore:
    """Open the database in `settings.data_path`. Blocks for as long as RocksDB takes. Raises StartError."""
    try:
        store = RocksStore(
            settings.data_path,
            block_cache_bytes=settings.memory.store_cache,
            write_buffer_bytes=settings.memory.write_buffers,
            open_tables=tables,
            keep_log=settings.wal_archive_seconds > 0,
            boot_id=boot_id(),
            reserve_bytes=settings.min_free_bytes,
        )
        if store.leave_log():
            log.warning("%s is of a node of a cluster: it is a server of its own from now on", settings.data_path)
        return store
    except StoreError as error:
        raise StartError(str(error)) from error
