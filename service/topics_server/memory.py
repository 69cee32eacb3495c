"""Memory limit of this process, and the defaults that follow from it."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_AT_REST: Final = 96 << 20
_WRITE_TIMES: Final = 5
"""Times its size that the largest body may take while it is received and stored beside others (docs/security.md)."""
_MIN_MEMORY: Final = 16 << 20
_MIN_BODY: Final = 2 << 20


class Plan(NamedTuple):
    """Bytes: `memory_bytes` and `max_body_bytes` of the settings."""

    memory: int
    body: int


def limit(root: Path = Path("/")) -> int | None:
    """The bytes that the kernel lets this process have, or None where it does not say.

    The least of the machine's memory and the limits of the control groups (version 1 and 2) that the process is in.
    """
    return min(_limits(root), default=None)


def plan(available: int, wanted: Plan) -> Plan:
    """`wanted`, or less where the process would be killed with it.

    Requests come on top of `memory`, half as much again at most (HTTP and gRPC a quarter, Kafka a quarter).
    """
    room = available - _AT_REST
    body = min(wanted.body, max(_MIN_BODY, room // (2 * _WRITE_TIMES)))
    return Plan(min(wanted.memory, max(_MIN_MEMORY, (room - _WRITE_TIMES * body) * 2 // 3)), body)


def _limits(root: Path) -> Iterator[int]:
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    if pages > 0 and size > 0:
        yield pages * size
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            mount, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            mount, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        # Inside a container the path may be that of the host, where only the mount's own file is there.
        folder = mount / group.lstrip("/")
        for each in (folder, *folder.parents):
            if not each.is_relative_to(mount):
                break
            value = _text(each / name).strip()
            if value.isdigit():
                yield int(value)


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
