"""Users of the settings, from the environment or from a file."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from topics_server.secret_files import BLANKS, SecretsError, entries_of, lines_of, read_file
from topics_service.api.access.auth import KeySyntaxError, Role, parse_prefixes
from topics_service.api.access.users import UserRow, check_name
from topics_service.api.access.verifiers import MAX_PASSWORD_BYTES, matches, may_be_password, verifier

MAX_USERS: Final = 1000

_ROLES: Final = {role.value: role for role in Role}


class _Entry(NamedTuple):
    name: str
    password: str
    role: Role
    prefixes: tuple[str, ...] | None

    def row(self, known: UserRow | None) -> UserRow:
        """The user, with the verifier that is `known` for it if that is one of this password."""
        secret = self.password.encode(errors="surrogateescape")
        same = known is not None and matches(secret, known.verifier)
        return UserRow(self.name, self.role, known.verifier if known and same else verifier(secret), self.prefixes)


def from_text(text: str) -> tuple[UserRow, ...] | None:
    """The users of TOPICS_SQL_USERS; None for a text without entries. Takes 50 ms for each. Raises SecretsError."""
    try:
        entries = [_entry(part, number) for number, part in enumerate(entries_of(text), 1)]
        _check_names(entries)
    except KeySyntaxError as error:
        raise SecretsError(f"TOPICS_SQL_USERS: {error}") from None
    return tuple(entry.row(None) for entry in entries) or None


def from_file(path: str, known: Iterable[UserRow] = ()) -> tuple[UserRow, ...]:
    """The users of TOPICS_SQL_USERS_FILE: an entry a line; blank lines and those that begin with `#` do not count.

    Takes 50 ms for each. Users of `known` whose password is the same keep their verifier. Raises SecretsError, also
    for a file without any entry.
    """
    where = f"TOPICS_SQL_USERS_FILE {path}"
    entries: list[_Entry] = []
    for number, line in lines_of(read_file("TOPICS_SQL_USERS_FILE", path)):
        try:
            entries += [_entry(part, nth) for nth, part in enumerate(entries_of(line), 1)]
        except KeySyntaxError as error:
            raise SecretsError(f"{where}, line {number}: {error}") from None
    if not entries:
        raise SecretsError(f"{where}: there is no user in it; each line is NAME:PASSWORD:ROLE[:PREFIXES]")
    try:
        _check_names(entries)
    except KeySyntaxError as error:
        raise SecretsError(f"{where}: {error}") from None
    by_name = {row.name: row for row in known}
    return tuple(entry.row(by_name.get(entry.name)) for entry in entries)


def _entry(text: str, number: int) -> _Entry:
    """An entry, `NAME:PASSWORD:ROLE[:PREFIXES]`. Raises KeySyntaxError, which quotes nothing of it."""
    parts = [part.strip(BLANKS) for part in text.split(":", 3)]
    if len(parts) < 3:
        raise KeySyntaxError(f"entry {number} is not NAME:PASSWORD:ROLE[:PREFIXES]")
    name, password, role = parts[:3]
    try:
        check_name(name)
    except ValueError as error:
        raise KeySyntaxError(f"entry {number}: {error}") from None
    if not may_be_password(password.encode(errors="surrogateescape")):
        raise KeySyntaxError(f"entry {number} has no password, one of more than {MAX_PASSWORD_BYTES} bytes, or a NUL")
    if role.lower() not in _ROLES:
        raise KeySyntaxError(f"entry {number} has a role that is none of {', '.join(_ROLES)}")
    if len(parts) == 4 and not parts[3]:
        raise KeySyntaxError(f"entry {number} has a list of prefixes without any prefix")
    return _Entry(name, password, _ROLES[role.lower()], parse_prefixes(parts[3] if len(parts) == 4 else "", number))


def _check_names(entries: Iterable[_Entry]) -> None:
    """Raise KeySyntaxError for two entries with one name, and for too many."""
    seen: set[str] = set()
    for number, entry in enumerate(entries, 1):
        if entry.name in seen:
            raise KeySyntaxError(f"the name of user {number} is there twice")
        seen.add(entry.name)
    if len(seen) > MAX_USERS:
        raise KeySyntaxError(f"there are more than {MAX_USERS} users; CREATE USER makes others")
