"""A PostgreSQL of its own as the peer: a cluster in a temporary directory, on a Unix socket or on TCP."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from support.ports import free_port

MISSING: Final = "not installed (apt-get install -y postgresql)"
_USER: Final = "postgres"


def binaries() -> Path | None:
    """The directory of `initdb` and `postgres`, where they are installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


@contextlib.contextmanager
def postgres_server(programs: Path, *, tcp: bool = False) -> Iterator[str]:
    """A server in its default configuration; yields the string to connect with. CalledProcessError if it fails."""
    user = _USER if os.geteuid() == 0 else None  # it refuses to run as root
    directory = Path(tempfile.mkdtemp(prefix="bench-postgres-"))
    if user is not None:
        shutil.chown(directory, user)

    def run(*command: str) -> None:
        subprocess.run([str(programs / command[0]), *command[1:]], check=True, user=user, stdout=subprocess.DEVNULL)

    data = str(directory / "data")
    try:
        run("initdb", "--pgdata", data, "--auth", "trust", "--username", _USER, "--no-sync")
        port = free_port()
        addresses = "127.0.0.1" if tcp else ""
        options = f"-c listen_addresses={addresses} -c port={port} -c unix_socket_directories={directory}"
        run("pg_ctl", "start", "--wait", "--pgdata", data, "--log", str(directory / "log"), "--options", options)
        try:
            host = "127.0.0.1" if tcp else directory
            yield f"host={host} port={port} user={_USER} dbname=postgres"
        finally:
            run("pg_ctl", "stop", "--wait", "--mode", "fast", "--pgdata", data)
    finally:
        shutil.rmtree(directory)
