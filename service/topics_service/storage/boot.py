"""The boot of the machine: written data survives a killed process within one boot, synced data survives a new one."""

from pathlib import Path
from typing import Final

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return the id of this boot, which a restart of the machine changes; "" if unknown."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
