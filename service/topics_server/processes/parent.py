"""The parent of the processes of a server with shards: starts and supervises them, and serves nothing itself."""

import contextlib
import ctypes
import gc
import logging
import os
import select
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NoReturn

from topics_server.errors import StartError
from topics_server.listeners import announce, announce_kafka, announce_postgres
from topics_server.ports import bind
from topics_server.processes import directory, share
from topics_server.processes.board import Board
from topics_server.processes.ledger import Ledger
from topics_server.processes.share import Share
from topics_server.settings import Settings

log = logging.getLogger("topics.processes")

Serve = Callable[[Settings, Share], None]
"""Serves one part until a signal or the end of the parent. Raises StartError."""

_STOPS: Final = (signal.SIGTERM, signal.SIGINT)
_HANDLED: Final = (*_STOPS, signal.SIGHUP)
_PR_SET_PDEATHSIG: Final = 1
_FIRST_BACKOFF: Final = 0.1
_MAX_BACKOFF: Final = 5.0
_MOST_DEATHS: Final = 5  # of one process within
_DEATHS_SECONDS: Final = 60.0
_START_SECONDS: Final = 3600.0  # of a select without anything else to wait for
_GRACE_SECONDS: Final = 10.0  # beyond the drain, until processes that do not end are killed


@dataclass(kw_only=True)
class _Child:
    """One of the processes, and the one that replaces it when it has died."""

    number: int
    pid: int = 0
    control: socket.socket | None = None
    is_listening: bool = False
    is_serving: bool = False
    is_drained: bool = False
    error: str = ""
    deaths: list[float] = field(default_factory=list)
    backoff: float = _FIRST_BACKOFF
    again_at: float = 0.0


class Parent:
    """Runs until a signal, or until a process can't be kept running. For a main thread without others."""

    def __init__(self, settings: Settings, serve: Serve) -> None:
        self._settings = settings
        self._serve = serve
        self._count = 0
        self._board = Board(0)
        self._ledger = Ledger(settings.processes)
        self._sockets = Path()
        self._children = [_Child(number=number) for number in range(settings.processes)]
        self._poll = select.poll()
        self._is_announced = self._are_all_announced = False
        self._stopped_at = 0.0
        self._killed = False
        self._failure = ""

    def run(self) -> None:
        """Start the processes and return once all have ended. Raises StartError."""
        hold, self._count = directory.take(self._settings)
        self._board = Board(self._count)
        with contextlib.ExitStack() as stack:
            stack.callback(hold.release)
            self._settings = self._reserve(stack)
            self._sockets = Path(tempfile.mkdtemp(prefix="topics-"))
            stack.callback(shutil.rmtree, self._sockets, ignore_errors=True)
            signals = _signals(stack)
            self._poll.register(signals, select.POLLIN)
            gc.collect()
            gc.freeze()  # what all processes have stays shared between them
            try:
                for child in self._children:
                    self._start(child)
                self._supervise(signals)
            finally:
                self._kill()
        if self._failure:
            raise StartError(self._failure)
        log.info("stopped after %.1f s", time.monotonic() - self._stopped_at)

    def _reserve(self, stack: contextlib.ExitStack) -> Settings:
        """Hold the ports, without listening, for as long as there are processes to share them."""
        settings, wanted = self._settings, {"port": "TOPICS_PORT", "grpc_port": "TOPICS_GRPC_PORT"}
        if settings.kafka_port:
            wanted["kafka_port"] = "TOPICS_KAFKA_PORT"
        if settings.pg_port:
            wanted["pg_port"] = "TOPICS_PG_PORT"
        found: dict[str, int] = {}
        for name, variable in wanted.items():
            port = int(getattr(settings, name))
            if port:
                bind(settings.host, port, variable).close()  # no other program has it
            held = stack.enter_context(bind(settings.host, port, variable, is_shared=True))
            found[name] = held.getsockname()[1]
        kafka_port, pg_port = (str(found.get(name, "")) for name in ("kafka_port", "pg_port"))
        return replace(
            settings, port=found["port"], grpc_port=found["grpc_port"], kafka_port=kafka_port, pg_port=pg_port
        )

    # ------------------------------------------------------------- children

    def _start(self, child: _Child) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        part = Share(
            process=child.number,
            processes=len(self._children),
            count=self._count,
            sockets=self._sockets,
            control=theirs,
            board=self._board,
            ledger=self._ledger,
        )
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
        pid = os.fork()
        if not pid:
            ours.close()
            self._become(part)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
        theirs.close()
        child.pid, child.control, child.error = pid, ours, ""
        child.is_listening = child.is_serving = child.is_drained = False
        self._poll.register(ours, select.POLLIN)
        log.info("process %d of %d: %d", child.number, len(self._children), pid)

    def _become(self, part: Share) -> NoReturn:
        """Be the process, in the place of the parent, to its end."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for signum in _STOPS:
                signal.signal(signum, signal.SIG_DFL)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            for child in self._children:
                if child.control is not None:
                    child.control.close()  # else the end of the parent would not show
            self._serve(self._settings, part)
            code = 0
        except StartError as error:
            part.tell(failed=str(error))
        except BaseException:
            log.exception("process %d failed", part.process)
        finally:
            logging.shutdown()
            os._exit(code)

    def _supervise(self, signals: socket.socket) -> None:
        """Follow signals and processes until all have ended."""
        by_fd = {}
        while True:
            now = time.monotonic()
            for child in self._children:
                if not child.pid and not self._stopped_at and now >= child.again_at:
                    self._start(child)
            if self._stopped_at and not any(child.pid for child in self._children):
                return
            by_fd = {child.control.fileno(): child for child in self._children if child.control is not None}
            for fd, _ in self._poll.poll(self._patience(now) * 1000):
                if fd == signals.fileno():
                    self._signalled(signals.recv(64))
                elif fd in by_fd:
                    self._heard(by_fd[fd])
            if self._stopped_at and not self._killed and time.monotonic() > self._deadline:
                self._killed = True
                log.error("processes do not end and are killed")
                self._kill()

    @property
    def _deadline(self) -> float:
        return self._stopped_at + self._settings.drain_seconds + _GRACE_SECONDS

    def _patience(self, now: float) -> float:
        """The time (seconds) after which there is something to do without a message."""
        if self._stopped_at:
            return max(0.0, self._deadline - now) + 0.01 if not self._killed else _GRACE_SECONDS
        return min((max(0.0, each.again_at - now) for each in self._children if not each.pid), default=_START_SECONDS)

    def _signalled(self, signums: bytes) -> None:
        for signum in signums:
            if signum in _STOPS:
                self._stop(f"stopping: draining for up to {self._settings.drain_seconds} s")
            elif signum == signal.SIGHUP:
                self._send(signal.SIGHUP)

    def _stop(self, why: str) -> None:
        if not self._stopped_at:
            log.info("%s", why)
            self._stopped_at = time.monotonic()
            self._send(signal.SIGTERM)
            self._let_finish()

    def _send(self, signum: signal.Signals) -> None:
        for child in self._children:
            if child.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, signum)

    def _kill(self) -> None:
        """Kill the processes that are left."""
        for child in self._children:
            if child.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)
                os.waitpid(child.pid, 0)
                self._forget(child)

    # ------------------------------------------------------------- messages

    def _heard(self, child: _Child) -> None:
        assert child.control is not None
        message = share.read(child.control)
        if message is None:
            self._ended(child)
        elif "failed" in message:
            child.error = str(message["failed"])
        elif "listening" in message:
            child.is_listening = True
            if not self._is_announced and all(each.is_listening for each in self._children):
                self._is_announced = True
                self._announce(lambda: announce(self._settings, self._settings.port, self._settings.grpc_port))
        elif "serving" in message:
            child.is_serving = True
            if not self._are_all_announced and all(each.is_serving for each in self._children):
                self._are_all_announced = True
                self._announce(self._announce_others)
        elif "drained" in message:
            child.is_drained = True
            self._let_finish()

    def _announce_others(self) -> None:
        """Announce the ports that are listened on once everything is recovered."""
        if self._settings.pg_port:
            announce_postgres(self._settings, int(self._settings.pg_port))
        if self._settings.kafka_port:
            announce_kafka(self._settings, int(self._settings.kafka_port))

    def _announce(self, write: Callable[[], None]) -> None:
        try:
            write()
        except StartError as error:
            self._fail(str(error))

    def _fail(self, why: str) -> None:
        self._failure = self._failure or why
        self._stop(f"stopping: {why}")

    def _let_finish(self) -> None:
        """Let all processes finish once none of them has calls of clients, which may need any of the others."""
        if self._stopped_at and all(child.is_drained or not child.pid for child in self._children):
            for child in self._children:
                if child.control is not None:
                    share.let_finish(child.control)

    def _ended(self, child: _Child) -> None:
        """Start a process again that has died, unless it does so again and again, or never served."""
        pid, was_serving, error = child.pid, child.is_serving, child.error
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self._forget(child)
        how = error or (f"was killed by signal {-code}" if code < 0 else f"ended with {code}")
        if self._stopped_at:
            if code not in (0, -signal.SIGTERM) and not self._failure:
                self._failure = f"process {child.number} {how} while the server stopped"
            self._let_finish()
            return
        if error and not self._is_announced:
            self._fail(error)
            return
        now = time.monotonic()
        child.deaths = [each for each in child.deaths if now - each < _DEATHS_SECONDS] + [now]
        if len(child.deaths) > _MOST_DEATHS:
            self._fail(f"process {child.number} {how}, for the {len(child.deaths)}th time within a minute")
            return
        if was_serving and len(child.deaths) == 1:
            child.backoff = _FIRST_BACKOFF
        child.again_at = now + child.backoff
        log.error("process %d (%d) %s; starts again in %.1f s", child.number, pid, how, child.backoff)
        child.backoff = min(2 * child.backoff, _MAX_BACKOFF)

    def _forget(self, child: _Child) -> None:
        if child.control is not None:
            self._poll.unregister(child.control)
            child.control.close()
        child.pid, child.control = 0, None
        for shard in range(child.number, self._count, len(self._children)):
            self._board.leave(shard)
        self._ledger.clear(child.number)


def _signals(stack: contextlib.ExitStack) -> socket.socket:
    """A socket that gets the numbers of the signals that come."""
    receiving, sending = socket.socketpair()
    stack.enter_context(receiving)
    stack.enter_context(sending)
    receiving.setblocking(False)
    sending.setblocking(False)
    for signum in _HANDLED:
        signal.signal(signum, lambda *_: None)
    signal.set_wakeup_fd(sending.fileno())
    stack.callback(signal.set_wakeup_fd, -1)
    return receiving
