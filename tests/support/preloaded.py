"""`topics serve` processes forked from one that has imported everything: 0.07 s of CPU a start in place of 1.2.

Run as a program, with a SOCK_SEQPACKET socket as its standard input, this is the process that is forked. It starts no
thread and no channel of gRPC, so each child begins as a fresh interpreter would after its imports. A child has its own
session and dies with its parent, which dies with the tests.
"""

import array
import contextlib
import ctypes
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Final, NoReturn

_PR_SET_PDEATHSIG: Final = 1
_MAX_REQUEST: Final = 1 << 17


class Forked:
    """One forked server, with the part of Popen's interface that is needed."""

    def __init__(self, pid: int, status: BinaryIO) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        """Return the exit code, as Popen gives it, or None while the process runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once the process has ended. Raises TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("topics serve", timeout or 0)
            text = self._status.read()
            self._status.close()
            self.returncode = int(text) if text else -signal.SIGKILL
        return self.returncode


class Preloaded:
    """The process that is forked; started with the first server."""

    def __init__(self) -> None:
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, env: Mapping[str, str], out: BinaryIO) -> Forked:
        """Start `topics serve` with exactly this environment; `out` takes what it prints."""
        control = self._running()
        read, write = os.pipe()
        status = os.fdopen(read, "rb")
        fds = array.array("i", [out.fileno(), write])
        request = json.dumps({"env": dict(env), "cwd": os.getcwd()}).encode()
        assert len(request) < _MAX_REQUEST
        control.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        os.close(write)
        return Forked(int(control.recv(64)), status)

    def cpu_seconds(self) -> float:
        """Return the CPU time that the process and its servers that have ended took so far."""
        if self._process is None:
            return 0.0
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # utime, stime, cutime, cstime

    def _running(self) -> socket.socket:
        if self._control is None:
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._process = subprocess.Popen([sys.executable, "-P", __file__], stdin=theirs, start_new_session=True)
            theirs.close()
            assert self._control.recv(64) == b"ready"
        return self._control


def _main() -> None:
    _die_with_parent()
    control = socket.socket(fileno=0)
    _load()
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a thread does not survive a fork"
    control.send(b"ready")
    children: dict[int, tuple[int, int]] = {}  # pidfd -> pid, status pipe
    while True:
        for fd in select.select([control, *children], [], [])[0]:
            if fd is not control:
                pid, status = children.pop(fd)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with contextlib.suppress(BrokenPipeError):
                    os.write(status, str(code).encode())
                os.close(status)
                os.close(fd)
                continue
            request, fds, _, _ = socket.recv_fds(control, _MAX_REQUEST, 2)
            if not request:
                return
            out, status = fds
            pid = os.fork()
            if not pid:
                os.close(status)
                for each, (_, other) in children.items():
                    os.close(each)
                    os.close(other)
                _serve(json.loads(request), out, control)
            os.close(out)
            children[os.pidfd_open(pid)] = (pid, status)
            control.send(str(pid).encode())


def _load() -> None:
    import gc

    import topics_server.server  # noqa: F401

    gc.collect()
    gc.freeze()


def _serve(request: dict[str, object], out: int, control: socket.socket) -> NoReturn:
    """Become the server: what an `exec` would make new is made new."""
    import topics_cli

    os.setsid()
    _die_with_parent()
    control.detach()
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(out)
    os.environ.clear()
    env = request["env"]
    assert isinstance(env, dict)
    os.environ.update(env)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # as topics_client does when it is imported
    os.chdir(str(request["cwd"]))
    random.seed()
    sys.argv = ["topics", "serve"]
    sys.exit(topics_cli.main())


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    _main()
