"""The boot of the machine: what is written outlives the process within one, and what is synced outlives it."""

from pathlib import Path
from typing import Final

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return the id of this boot, which a restart of the machine changes; "" where there is none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
