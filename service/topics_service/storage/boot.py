"""The boot of the machine: what is written outlives the process within one, and what is synced outlives it."""

from pathlib import Path
from typing import Final

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """What changes when the machine restarts; "" where there is no such thing."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
