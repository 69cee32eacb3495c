"""Users: those of the settings and those of CREATE USER, with their roles. Pure."""

from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Final

from msgspec import Struct

from topics_service.api.access.auth import Principal, Role
from topics_service.api.access.roles import scopes_of
from topics_service.api.access.verifiers import Verifier

MAX_NAME_BYTES: Final = 128


class UserRow(Struct, frozen=True):
    """One user, as it is stored. `prefixes` None allows every name."""

    name: str
    role: Role
    verifier: Verifier
    prefixes: tuple[str, ...] | None = None


def check_name(name: str) -> None:
    """Raise ValueError, with the reason, unless a user can have this name."""
    if not name:
        raise ValueError("the name of a user is empty")
    if len(name.encode(errors="surrogatepass")) > MAX_NAME_BYTES:
        raise ValueError(f"the name of a user is longer than {MAX_NAME_BYTES} bytes")
    if ":" in name or not name.isprintable():
        raise ValueError("the name of a user has a colon or a character that does not print")


class Users:
    """All users of a server, by name.

    Those of the settings can't be changed by statements, and hide rows of the same name.
    """

    def __init__(self, settings: Iterable[UserRow] = (), *, user_consumes: bool = False) -> None:
        """`user_consumes` lets the role `user` read and consume topics."""
        self._user_consumes = user_consumes
        self._settings = {row.name: row for row in settings}
        self._rows: dict[str, UserRow] = {}
        self._known: dict[str, tuple[UserRow, Principal]] = {}
        self.on_change: Callable[[], None] = lambda: None
        """Called after every change. The authorizer ends the calls of users that are not the same any more."""
        self._refresh()

    def __len__(self) -> int:
        return len(self._known)

    def find(self, name: str) -> tuple[UserRow, Principal] | None:
        """Find a user and the caller that it is; None if unknown."""
        return self._known.get(name)

    def rows(self) -> list[UserRow]:
        """All users, by name."""
        return [row for _, (row, _) in sorted(self._known.items())]

    def principals(self) -> list[Principal]:
        """The callers that the users are, by name."""
        return [principal for _, (_, principal) in sorted(self._known.items())]

    def is_read_only(self, name: str) -> bool:
        """True if the user is one of the settings, which no statement can change or drop."""
        return name in self._settings

    def is_stored(self, principal: Principal) -> bool:
        """True if the caller is a user of CREATE USER."""
        kind, _, name = principal.key_id.partition(":")
        return kind == "user" and name not in self._settings

    @property
    def are_configured(self) -> bool:
        """True if there are users in the settings."""
        return bool(self._settings)

    def replace_settings(self, rows: Iterable[UserRow]) -> None:
        """Replace the users of the settings."""
        self._settings = {row.name: row for row in rows}
        self._refresh()
        self.on_change()

    @property
    def stored(self) -> list[UserRow]:
        """The users of CREATE USER."""
        return list(self._rows.values())

    def replace_stored(self, rows: Iterable[UserRow]) -> None:
        """Replace the users of CREATE USER, for a process that only follows them."""
        new = {row.name: row for row in rows}
        if new != self._rows:
            changed = {*self._rows, *new}
            self._rows = new
            for name in changed:
                self._set(name)
            self.on_change()

    def put_row(self, row: UserRow) -> None:
        """Add a user of CREATE USER, or replace it."""
        self._rows[row.name] = row
        self._set(row.name)
        self.on_change()

    def remove_row(self, name: str) -> None:
        """Remove a user of CREATE USER; nothing happens if there is none."""
        self._rows.pop(name, None)
        self._set(name)
        self.on_change()

    def _refresh(self) -> None:
        for name in {*self._known, *self._settings}:
            self._set(name)

    def _set(self, name: str) -> None:
        row = self._settings.get(name) or self._rows.get(name)
        if row is None:
            self._known.pop(name, None)
        elif name not in self._known or self._known[name][0] != row:
            self._known[name] = row, self._principal(row)

    def _principal(self, row: UserRow) -> Principal:
        return Principal(
            f"user:{row.name}",
            scopes_of(row.role, user_consumes=self._user_consumes),
            row.prefixes,
            row.role,
            credential=sha256(row.verifier.scrypt.encode()).hexdigest()[:16],
        )
