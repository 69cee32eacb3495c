"""Servers on restored directories."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from support.server import ServerProcess

Restored = Callable[[Path], ServerProcess]
"""Starts a server on a restored directory."""


@contextmanager
def restoring(folder: Path, env: Mapping[str, str]) -> Iterator[Restored]:
    """Start servers with these settings until the end of the block; their logs must hold no traceback."""
    running: list[ServerProcess] = []

    def start(directory: Path) -> ServerProcess:
        running.append(ServerProcess(folder / f"restored-{len(running)}", data_dir=directory, env=env))
        return running[-1].start()

    yield start
    for each in running:
        each.kill()
        assert "Traceback" not in each.log, each.log[-3000:]
