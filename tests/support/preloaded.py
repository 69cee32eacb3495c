"""`topics` processes forked from one that has imported what they need: 0.07 s of CPU a server in place of 1.2.

Run as a program, with a SOCK_SEQPACKET socket as its standard input and the names of modules as its arguments, this is
the process that is forked. It starts no thread and no channel of gRPC, so each child begins as a fresh interpreter
would after its imports. A child has its own session and dies with its parent, which dies with the tests.
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
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn

_PR_SET_PDEATHSIG: Final = 1
_CLONE_NEWNET: Final = 0x40000000
_MAX_REQUEST: Final = 1 << 17


class Forked:
    """One forked process, with the part of Popen's interface that is needed."""

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
                raise subprocess.TimeoutExpired("topics", timeout or 0)
            text = self._status.read()
            self._status.close()
            self.returncode = int(text) if text else -signal.SIGKILL
        return self.returncode


class Preloaded:
    """The process that is forked, which imports `modules`; started with the first child."""

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(
        self,
        arguments: Sequence[str],
        env: Mapping[str, str],
        stdin: int,
        stdout: int,
        stderr: int,
        network: Path | None = None,
    ) -> Forked:
        """Start `topics ARGUMENTS` with exactly this environment, in this process's working directory, and in a network
        namespace."""
        control = self._running()
        read, write = os.pipe()
        status = os.fdopen(read, "rb")
        fds = array.array("i", [stdin, stdout, stderr, write])
        given = {"arguments": list(arguments), "env": dict(env), "cwd": os.getcwd()}
        request = json.dumps(given | {"network": str(network or "")}).encode()
        assert len(request) < _MAX_REQUEST
        control.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        os.close(write)
        return Forked(int(control.recv(64)), status)

    def run(
        self, arguments: Sequence[str], env: Mapping[str, str], timeout: float
    ) -> "subprocess.CompletedProcess[bytes]":
        """Run `topics ARGUMENTS` to its end, as `subprocess.run` does with `input=b""` and `capture_output`."""
        (stdin, nothing), (out, stdout), (err, stderr) = os.pipe(), os.pipe(), os.pipe()
        os.close(nothing)
        try:
            process = self.start(arguments, env, stdin, stdout, stderr)
        finally:
            for fd in (stdin, stdout, stderr):
                os.close(fd)
        deadline, found = time.monotonic() + timeout, {out: b"", err: b""}
        unread = set(found)
        try:
            while unread:
                ready = select.select(unread, [], [], max(0, deadline - time.monotonic()))[0]
                if not ready:
                    raise subprocess.TimeoutExpired(["topics", *arguments], timeout, found[out], found[err])
                for fd in ready:
                    part = os.read(fd, 1 << 16)
                    found[fd] += part
                    if not part:
                        unread.remove(fd)
            code = process.wait(max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            raise
        finally:
            os.close(out)
            os.close(err)
        return subprocess.CompletedProcess(["topics", *arguments], code, found[out], found[err])

    def cpu_seconds(self) -> float:
        """Return the CPU time that the process and its children that have ended took so far."""
        if self._process is None:
            return 0.0
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # utime, stime, cutime, cstime

    def _running(self) -> socket.socket:
        if self._control is None:
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, *self._modules], stdin=theirs, start_new_session=True
            )
            theirs.close()
            assert self._control.recv(64) == b"ready"
        return self._control


def _main() -> None:
    _die_with_parent()
    control = socket.socket(fileno=0)
    _load(sys.argv[1:])
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
            request, fds, _, _ = socket.recv_fds(control, _MAX_REQUEST, 4)
            if not request:
                return
            *streams, status = fds
            pid = os.fork()
            if not pid:
                os.close(status)
                for each, (_, other) in children.items():
                    os.close(each)
                    os.close(other)
                _become(json.loads(request), streams, control)
            for each in streams:
                os.close(each)
            children[os.pidfd_open(pid)] = (pid, status)
            control.send(str(pid).encode())


def _load(modules: Sequence[str]) -> None:
    import gc
    from importlib import import_module

    for name in modules:
        import_module(name)

    gc.collect()
    gc.freeze()


def _become(request: dict[str, Any], streams: Sequence[int], control: socket.socket) -> NoReturn:
    """Become the command: what an `exec` would make new is made new."""
    import topics_cli

    os.setsid()
    _die_with_parent()
    if request["network"]:
        with open(request["network"]) as space:
            assert ctypes.CDLL(None).setns(space.fileno(), _CLONE_NEWNET) == 0
    control.detach()
    for fd, stream in enumerate(streams):
        os.dup2(stream, fd)
        os.close(stream)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  as long as the process
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(request["env"])
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # as topics_client does when it is imported
    os.chdir(request["cwd"])
    random.seed()
    sys.argv = ["topics", *request["arguments"]]
    sys.exit(topics_cli.main())


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    _main()
