"""One serving process: start-up, main loop and shutdown in the order they happen."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from errno import EADDRINUSE, EADDRNOTAVAIL
from functools import partial
from pathlib import Path
from typing import NamedTuple

import uvloop

from topics_client.units import counted, human_size
from topics_gateway.app import create_app
from topics_gateway.settings import GatewaySettings
from topics_gateway.transport.server import HttpServer
from topics_kafka.apis import all_handlers
from topics_kafka.listener import KafkaServer, create_kafka
from topics_server import logs, tracing
from topics_server.audit import AuditFile
from topics_server.descriptors import TooFewError, share
from topics_server.disk import FreeSpace
from topics_server.door_calls import AuditInterceptor, audited_app, audited_kafka, while_good
from topics_server.forwarder import Forwarder
from topics_server.lag import LoopLag
from topics_server.memory import limit as memory_limit
from topics_server.reload import Hangups, Readers, Reload, is_useful
from topics_server.settings import Settings, default, split_host
from topics_server.space import DiskSpace
from topics_server.tls import HTTP_PROTOCOLS, DoorCertificates, TlsError, certificates
from topics_server.trimming import trim_archive
from topics_service import __version__
from topics_service.api.access import Gate
from topics_service.api.audit import AuditLog
from topics_service.api.audit_calls import AuditedCheckpoints, AuditedTopicsApi
from topics_service.api.checkpoints import Checkpoints
from topics_service.api.grpc.server import GrpcServer
from topics_service.api.pressure import Pressure
from topics_service.api.topics import TopicsApi
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.errors import TopicsError
from topics_service.statistics import SpaceStatistics
from topics_service.storage import checkpoint, properties
from topics_service.storage.boot import boot_id
from topics_service.storage.private import open_to
from topics_service.storage.reclaim import Reclaim
from topics_service.storage.rocks import RocksStore
from topics_service.storage.store import StoreError
from topics_service.storage.tidy import PERIOD_SECONDS, Tidy

log = logging.getLogger("topics.server")

# The commit thread needs the GIL back after each fsync. The default of 5 ms caps it at 160 fsyncs/s with a p50 of
# 6 ms; 0.3 ms gives 1,140 at 0.8 ms (design.md, section 2).
_SWITCH_INTERVAL_SECONDS = 0.0003
# A full collection walks every cached block. Against Python's (700, 10, 10) this took the loop's cost of a single
# append from 122 to 115 us, and the p99 of 64 writers from 27 to 12 ms.
_COLLECT_AFTER = (20_000, 20, 100)
_MOST_MESSAGE_BYTES = (1 << 31) - 1  # that gRPC can be told
_UPKEEP_SECONDS = 0.02
_SWEEP_SECONDS = 1.0
_RECOVERY_SLICE_SECONDS = 0.02


class StartError(Exception):
    """The server can't start; the message is for the operator."""


def run(settings: Settings, warnings: Sequence[str] = ()) -> None:
    """Serve until SIGTERM or SIGINT, then drain; `warnings` go to the log first. Raises StartError."""
    logs.configure(settings.log_level, settings.log_format)
    for text in warnings:
        log.warning("%s", text)
    sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
    hangups = Hangups() if is_useful(settings) else None
    try:
        settings, tables = share(settings)
    except TooFewError as error:
        raise StartError(str(error)) from None
    try:
        tls = certificates(settings)
    except TlsError as error:
        raise StartError(str(error)) from None
    audit = _audit_file(settings)
    try:
        traces = tracing.start(asked=settings.tracing)
    except tracing.TracingError as error:
        raise StartError(str(error)) from None
    http_socket = _bind(settings.host, settings.port, "TOPICS_PORT")
    try:
        kafka_socket = (
            _bind(settings.host, int(settings.kafka_port), "TOPICS_KAFKA_PORT") if settings.kafka_port else None
        )
    except StartError:
        http_socket.close()
        raise
    sockets = [sock for sock in (http_socket, kafka_socket) if sock is not None]
    try:
        memory = settings.memory
        store = traces.store(
            settings.data_path,
            block_cache_bytes=memory.store_cache,
            write_buffer_bytes=memory.write_buffers,
            open_tables=tables,
            keep_log=settings.wal_archive_seconds > 0,
            boot_id=boot_id(),
            reserve_bytes=settings.min_free_bytes,
        )
    except StoreError as error:
        for sock in sockets:
            sock.close()
        raise StartError(str(error)) from error
    ended: _End | None = None
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            ended = runner.run(_serve(settings, store, http_socket, kafka_socket, tls, audit, hangups, traces))
    except (StoreError, TopicsError) as error:
        raise StartError(str(error)) from error
    finally:
        for sock in sockets:
            sock.close()
        unwritten = _close(store, is_sound=ended is None or ended.is_sound)
        traces.stop()
        if audit is not None:
            audit.close()
        if ended is not None:
            _tell_end(ended, unwritten)


async def _serve(
    settings: Settings,
    store: RocksStore,
    http_socket: socket.socket,
    kafka_socket: socket.socket | None,
    tls: DoorCertificates,
    audit_file: AuditFile | None,
    hangups: Hangups | None,
    traces: tracing.Tracing,
) -> "_End":
    """Serve until a signal. After a storage failure the store must not be written any more."""
    engine = traces.engine(
        store,
        SystemClock(),
        limits=settings.limits,
        place=settings.place,
        cache_bytes=settings.memory.blocks,
        recover=False,
    )
    engine.blocks.on_damage = lambda error: log.error("%s", error.message)
    commit = traces.commit(store.sync, lambda: engine.writer.written, engine.synced, engine.sync_failed)
    engine.writer.request_sync = commit.want
    engine.writer.on_write_failed = lambda error: log.critical("the server is read-only from now on: %s", error)
    lag, disk, space_statistics = LoopLag(), FreeSpace(settings.data_path), SpaceStatistics()
    reclaim = Reclaim(store, lambda: engine.writer.total_bytes)
    engine.writer.on_freed = reclaim.freed
    space = DiskSpace(
        disk, store, reclaim, space_statistics,
        reserve=settings.min_free_bytes, written=lambda: engine.writer.statistics.bytes,
        is_writable=lambda: engine.writer.failure is None,
    )  # fmt: skip
    pressure = Pressure(
        lag_ms=lambda: lag.sustained_ms,
        max_lag_ms=settings.max_lag_ms,
        free_bytes=space.left,
        min_free_bytes=settings.min_free_bytes,
        statistics=space_statistics,
        flushing=lambda: store.flushing if engine.writer.failure is None else 0,
    )
    engine.room.disk = pressure.space if settings.min_free_bytes else None
    audit = AuditLog(audit_file.write) if audit_file is not None else None
    if audit is None:
        api = TopicsApi(engine, commit, pressure, settings.watch_caps)
    else:
        api = AuditedTopicsApi(engine, commit, pressure, settings.watch_caps, audit=audit)
    api.metrics.lag, api.metrics.wal_switches = lag, store.wal_switches
    api.metrics.traces = traces.statistics
    traces.forwarding(engine)
    api.metrics.disk, api.metrics.min_free_bytes, api.metrics.space = disk, settings.min_free_bytes, space_statistics
    api.metrics.store = lambda: properties.read(settings.data_path, store.families)
    gateway = GatewaySettings(
        max_body_bytes=settings.max_body_bytes,
        body_timeout_seconds=settings.body_timeout_seconds,
        render_cache_bytes=settings.memory.renderings // (2 if settings.kafka_port else 1),
        limits=settings.limits,
        hosts=settings.hosts,
        origins=settings.origins,
    )
    gate = Gate(settings.api_keys, probe_auth=settings.probe_auth, quotas=settings.quotas)
    api.watches.connections.quotas = gate.quotas
    if (memory := gate.quotas.memory) is not None:
        api.metrics.request_bytes = lambda: memory.used
    readers = Readers(settings)
    place, make = settings.data_path / "checkpoints", traces.checkpoint(partial(checkpoint.create, store))
    make = api.metrics.checkpoints.counted(make)
    checkpoints = (
        Checkpoints(place, make, checkpoint.remove, engine.ready)
        if audit is None
        else AuditedCheckpoints(place, make, checkpoint.remove, engine.ready, audit=audit)
    )
    checkpoints.clear()
    grpc = GrpcServer(
        api,
        host=settings.host,
        port=settings.grpc_port,
        max_message_bytes=min(settings.max_body_bytes + (1 << 20), _MOST_MESSAGE_BYTES),
        max_connections=settings.grpc_max_connections,
        gate=gate,
        bulk_readers=readers.addresses,
        checkpoints=checkpoints,
        credentials=tls.common.grpc_credentials() if tls.common else None,
        interceptors=(*traces.interceptors, *(() if audit is None else (AuditInterceptor(audit),))),
    )
    app = create_app(api, gateway, gate.cutting(), grpc.calls)
    http = HttpServer(
        traces.app(app if audit is None else audited_app(app, audit)),
        http_socket,
        tls=tls.common.context(HTTP_PROTOCOLS) if tls.common else None,
        header_timeout=settings.header_timeout_seconds,
        unread=settings.memory_bytes // 16,
        max_connections=settings.max_connections,
        ws_max_size=settings.max_body_bytes,
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    reload = Reload(settings, gate, api.watches, tls, readers, audit_file=audit_file, audit_log=audit)
    if hangups is not None:
        hangups.follow(reload)
    tidy = Tidy(store)
    work = [
        _upkeep(engine, disk, grpc),
        Forwarder(engine.routers).run(),
        lag.run(),
        trim_archive(settings, api.metrics.archive),
        _tidy(tidy),
    ]
    if settings.min_free_bytes:
        work.append(space.keep())
    background = [asyncio.create_task(each) for each in work]
    kafka: KafkaServer | None = None
    try:
        try:
            grpc_port = await grpc.start()
        except OSError as error:
            where = f"{settings.host}:{settings.grpc_port}"
            raise StartError(f"can't listen on {where} for gRPC: {_unheard(error, 'TOPICS_GRPC_PORT')}") from error
        await http.start()
        _announce(settings, http.port, grpc_port)
        began = time.monotonic()
        with traces.recovery():
            await _recover(engine, stop)
        api.metrics.recovery_seconds = time.monotonic() - began
        _tune_collector()
        grpc.set_serving(engine.ready().ready)
        if not stop.is_set():
            readers.start()
        if kafka_socket is not None and not stop.is_set():
            host, port = _advertised(settings, kafka_socket)
            try:
                handlers = while_good(all_handlers, gate)
                kafka = create_kafka(
                    api,
                    engine,
                    gate,
                    settings.kafka,
                    kafka_socket,
                    host=host,
                    port=port,
                    tls=tls.kafka.context() if tls.kafka else None,
                    handlers=traces.kafka(handlers if audit is None else audited_kafka(handlers, audit)),
                )
                await kafka.start()
            except (OSError, TopicsError) as error:
                raise StartError(f"Kafka: {error}") from error
            _announce_kafka(settings, kafka_socket.getsockname()[1], f"{host}:{port}")
        await stop.wait()
        stopped_at = time.monotonic()
        log.info("stopping: draining for up to %d s", settings.drain_seconds)
    finally:
        grpc.set_serving(False)
        api.drain()
        doors = (http, grpc) if kafka is None else (http, grpc, kafka)
        await asyncio.gather(readers.stop(), *(door.stop(settings.drain_seconds) for door in doors))
        for task in background:
            task.cancel()
        await asyncio.wait(background)
        if hangups is not None:
            hangups.leave()
        await asyncio.to_thread(commit.stop)
        await asyncio.to_thread(tidy.stop)
        await asyncio.to_thread(reclaim.stop)
        recovered, by_class = engine.recovered >= 1, dict(engine.catalog.census.by_class)
        with contextlib.suppress(StoreError):
            engine.close()
    forgotten = by_class.pop("ephemeral", 0)
    return _End(stopped_at, engine.writer.failure is None, recovered, sum(by_class.values()), forgotten)


class _End(NamedTuple):
    """How serving ended: when the signal came, whether the storage still worked, whether recovery was complete, and how
    many topics keep their records and how many, the ephemeral ones, do not."""

    since: float
    is_sound: bool
    is_recovered: bool
    kept: int
    forgotten: int


def _close(store: RocksStore, *, is_sound: bool) -> StoreError | None:
    """Write out what is in memory, after a storage failure nothing. Returns why that failed."""
    try:
        if is_sound:
            store.close()
        else:  # a flush would only fail, or write to a directory that is not there any more
            store.abandon()
    except StoreError as error:
        return error
    return None


def _tell_end(ended: _End, unwritten: StoreError | None) -> None:
    """Say how long the stop took, and what the next start finds."""
    seconds = time.monotonic() - ended.since
    if not ended.is_sound:
        log.warning("stopped after %.1f s, read-only: what was acknowledged is in the write-ahead log", seconds)
    elif unwritten is not None:
        log.warning("stopped after %.1f s: the next start replays the write-ahead log (%s)", seconds, unwritten)
    elif not ended.is_recovered:
        log.info("stopped after %.1f s, before recovery was complete: the next start begins it anew", seconds)
    else:
        lost = f"; the records of {counted(ended.forgotten, 'ephemeral topic')} are gone" if ended.forgotten else ""
        log.info("stopped after %.1f s: %s saved%s", seconds, counted(ended.kept, "topic"), lost)


async def _upkeep(engine: Engine, disk: FreeSpace, grpc: GrpcServer) -> None:
    """Background work in slices between requests. A slice that fails is logged and tried again a second later."""
    loop = asyncio.get_running_loop()
    next_sweep = loop.time() + _SWEEP_SECONDS
    while True:
        try:
            more = engine.upkeep()
            if loop.time() >= next_sweep:
                next_sweep = loop.time() + _SWEEP_SECONDS
                engine.sweep()
                _measure(engine, disk)
                grpc.set_serving(engine.ready().ready)  # a storage failure ends it
            await asyncio.sleep(0 if more else _UPKEEP_SECONDS)
        except Exception:
            log.exception("upkeep failed")
            await asyncio.sleep(_SWEEP_SECONDS)


def _measure(engine: Engine, disk: FreeSpace) -> None:
    """Ask for the free space. Without its directory the server must not acknowledge what can't be there any more."""
    try:
        disk.measure()
    except OSError as error:
        if engine.writer.failure is None:
            log.critical("the data directory is gone, the server is read-only from now on: %s", error)
            engine.sync_failed(error)


async def _tidy(tidy: Tidy) -> None:
    """Keep the tables of the database few. What fails is logged and tried again in the next round."""
    while True:
        await asyncio.sleep(PERIOD_SECONDS)
        try:
            await asyncio.to_thread(tidy.run)
        except Exception as error:  # rocksdict raises bare Exception
            log.warning("tables of deletions stay for now: %s", error)


async def _recover(engine: Engine, stop: asyncio.Event) -> None:
    """Recover between the first probes' answers; a signal ends it."""
    slice_ends = time.monotonic() + _RECOVERY_SLICE_SECONDS
    for _ in engine.recover(boot_id()):
        if stop.is_set():
            return
        if time.monotonic() >= slice_ends:
            await asyncio.sleep(0)
            slice_ends = time.monotonic() + _RECOVERY_SLICE_SECONDS
    log.info("ready with %s", counted(engine.ready().topics, "topic"))


def _tune_collector() -> None:
    """Let the cycle collector look at what is young: topics and cached blocks stay, and hold no cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)


def _tell_memory(settings: Settings) -> None:
    available = memory_limit()
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


def _announce(settings: Settings, http_port: int, grpc_port: int) -> None:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    _tell_port("TOPICS_PORT_FILE", settings.port_file, f"{host}:{http_port}")
    _tell_port("TOPICS_GRPC_PORT_FILE", settings.grpc_port_file, f"{host}:{grpc_port}")
    scheme, tls = ("https", " with TLS") if settings.tls_cert_file else ("http", "")
    log.info("topics %s: HTTP %s://%s:%d, gRPC %s:%d%s", __version__, scheme, host, http_port, host, grpc_port, tls)
    log.info("data in %s", settings.data_path)
    _tell_memory(settings)
    _warn_of_readers(settings)
    if settings.api_keys is None:
        log.warning("authentication is OFF: whoever reaches the server may do everything")
    else:
        log.info("authentication is on, with %s", counted(len(settings.api_keys), "API key"))


def _warn_of_readers(settings: Settings) -> None:
    """Tell of what is for the server alone and others of this machine may read. Modes stay as somebody set them."""
    if others := open_to(settings.data_path):
        log.warning("the data directory %s is open to %s: chmod 700 closes it", settings.data_path, others)
    secrets = (
        settings.api_keys_file,
        "" if settings.audit_log == "-" else settings.audit_log,
        settings.tls_key_file or settings.tls_cert_file,  # the key may be in the certificate's file
        settings.kafka_tls_key or settings.kafka_tls_cert,
    )
    for file in secrets:
        if file and open_to(Path(file)) == "everyone":
            log.warning("%s may be read by everyone on this machine: chmod 600 closes it", file)


def _announce_kafka(settings: Settings, port: int, advertised: str) -> None:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    _tell_port("TOPICS_KAFKA_PORT_FILE", settings.kafka_port_file, f"{host}:{port}")
    log.info("Kafka %s:%d, clients are told %s", host, port, advertised)


def _advertised(settings: Settings, kafka_socket: socket.socket) -> tuple[str, int]:
    """What Kafka clients are told to connect to: where nobody can, at a wildcard, the name of the machine stands in."""
    host, port = split_host(settings.kafka_advertised)
    if not host:
        host = socket.gethostname() if settings.host in ("0.0.0.0", "::", "") else settings.host
    return host, int(port or kafka_socket.getsockname()[1])


def _audit_file(settings: Settings) -> AuditFile | None:
    try:
        return AuditFile(settings.audit_log) if settings.audit_log else None
    except OSError as error:
        raise StartError(f"TOPICS_AUDIT_LOG {settings.audit_log}: {error.strerror}") from None


def _tell_port(setting: str, file: str, text: str) -> None:
    """Write a port file, if one is wanted, at once or not at all."""
    if not file:
        return
    path = Path(file)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(text)
        part.replace(path)
    except OSError as error:
        raise StartError(f"{setting} {file}: {error.strerror or error}") from None


def _bind(host: str, port: int, setting: str) -> socket.socket:
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, proto)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.setblocking(False)
    except OSError as error:
        raise StartError(f"can't listen on {host}:{port}: {_unheard(error, setting)}") from error
    return sock


def _unheard(error: OSError, setting: str) -> str:
    """Return why an address can't be listened on, and what to do about it."""
    why = error.strerror or str(error)
    if error.errno == EADDRINUSE:
        return f"{why}; is another server running? {setting} sets another port"
    return f"{why}; TOPICS_HOST must be an address of this machine" if error.errno == EADDRNOTAVAIL else why
