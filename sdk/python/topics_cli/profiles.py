"""Named server profiles in the user's file $XDG_CONFIG_HOME/topics/profiles.json."""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

_FILE: Final = "topics/profiles.json"
_MAX_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Profile:
    """A server, and its key: the key itself, or the environment variable that holds it when it is used."""

    server: str
    key: str | None = field(default=None, repr=False)
    key_env: str | None = None

    def current_key(self) -> str | None:
        """The key, if there is one."""
        return self.key or (os.environ.get(self.key_env) if self.key_env else None)


@dataclass(slots=True)
class Profiles:
    """All profiles. `used` is the name of the active one."""

    found: dict[str, Profile] = field(default_factory=dict)
    used: str | None = None


def path() -> Path | None:
    """Return the path of the file; None for a user without a home directory."""
    if folder := os.environ.get("XDG_CONFIG_HOME"):
        return Path(folder) / _FILE
    with suppress(RuntimeError):
        return Path.home() / ".config" / _FILE
    return None


def load() -> Profiles:
    """Load the file; empty if there is none. Raises OSError, and ValueError for a damaged file."""
    file = path()
    if file is None:
        return Profiles()
    try:
        with file.open("rb") as stream:
            text = stream.read(_MAX_BYTES)
            mode = os.fstat(stream.fileno()).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return Profiles()
    profiles = _parsed(text, file)
    if mode & 0o077 and any(each.key for each in profiles.found.values()):
        from topics_cli.output import note

        note(f"topics: {file} holds keys but is readable by others: chmod 600 {file}")
    return profiles


def save(profiles: Profiles) -> None:
    """Write the file atomically, readable only by the user. Raises OSError."""
    import json

    file = path()
    if file is None:
        raise OSError("no home directory for profiles; set XDG_CONFIG_HOME")
    file = Path(os.path.realpath(file))
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    members = {name: {k: v for k, v in asdict(each).items() if v} for name, each in sorted(profiles.found.items())}
    text = json.dumps({"used": profiles.used, "profiles": members}, indent=2, ensure_ascii=False) + "\n"
    part = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)


def _parsed(text: bytes, file: Path) -> Profiles:
    import json

    try:
        members = json.loads(text)
        found = {str(name): _profile(each) for name, each in members["profiles"].items()}
        used = members.get("used")
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise ValueError(f"{file} is damaged: fix or remove it; topics profile add creates a new one") from error
    return Profiles(found, used if used in found else None)


def _profile(members: Mapping[str, Any]) -> Profile:
    server, key, key_env = members["server"], members.get("key"), members.get("key_env")
    if not all(isinstance(each, str) for each in (server, key or "", key_env or "")):
        raise TypeError("server, key and key_env are texts")
    return Profile(server, key, key_env)
