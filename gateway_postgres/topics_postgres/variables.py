"""Variables of a session, for SHOW and SET; the client hears of changes of some."""

import re
from collections.abc import Callable, Iterator
from typing import Final

from topics_postgres.errors import PgError
from topics_service.engine.tables.model import DEFAULT_NAMESPACE
from topics_sql.tokens import words

SERVER_VERSION: Final = "16.0"
"""The version of PostgreSQL that clients adapt to."""
SERVER_VERSION_NUM: Final = "160000"

_INVALID: Final = "22023"
_FIXED: Final = "55P02"
_UNKNOWN: Final = "42704"
_MAX_LENGTH: Final = 1024
_MAX_CUSTOM: Final = 64
_ON: Final = {"on": "on", "true": "on", "yes": "on", "1": "on", "off": "off", "false": "off", "no": "off", "0": "off"}
_MILLISECONDS: Final = {"us": 0.001, "ms": 1.0, "s": 1000.0, "min": 60_000.0, "h": 3_600_000.0, "d": 86_400_000.0}
_DURATION: Final = re.compile(r"\s*([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*([a-z]*)\s*")
_DEFAULTS: Final = {
    "application_name": "",
    "bytea_output": "hex",
    "client_encoding": "UTF8",
    "client_min_messages": "notice",
    "datestyle": "ISO, MDY",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "extra_float_digits": "1",
    "idle_in_transaction_session_timeout": "60s",
    "idle_session_timeout": "8h",
    "in_hot_standby": "off",
    "integer_datetimes": "on",
    "intervalstyle": "postgres",
    "is_superuser": "off",
    "lock_timeout": "0",
    "max_identifier_length": "63",
    "max_index_keys": "32",
    "scram_iterations": "16384",
    "search_path": DEFAULT_NAMESPACE,
    "server_encoding": "UTF8",
    "server_version": SERVER_VERSION,
    "server_version_num": SERVER_VERSION_NUM,
    "session_authorization": "",
    "standard_conforming_strings": "on",
    "statement_timeout": "0",
    "synchronous_commit": "on",
    "timezone": "UTC",
    "transaction_isolation": "read committed",
    "transaction_read_only": "off",
}
_READ_ONLY: Final = words(
    """in_hot_standby integer_datetimes is_superuser max_identifier_length max_index_keys scram_iterations
    server_encoding server_version server_version_num session_authorization"""
)
_IGNORED: Final = words(
    """array_nulls backslash_quote check_function_bodies constraint_exclusion default_table_access_method
    default_tablespace escape_string_warning geqo idle_in_transaction_session_timeout idle_session_timeout jit
    lock_timeout max_parallel_workers_per_gather quote_all_identifiers random_page_cost row_security
    session_replication_role temp_tablespaces transaction_timeout work_mem xmloption"""
)
"""Variables that may be set and change nothing."""
_REPORTED: Final = {
    "application_name": "application_name",
    "client_encoding": "client_encoding",
    "datestyle": "DateStyle",
    "default_transaction_read_only": "default_transaction_read_only",
    "in_hot_standby": "in_hot_standby",
    "integer_datetimes": "integer_datetimes",
    "intervalstyle": "IntervalStyle",
    "is_superuser": "is_superuser",
    "scram_iterations": "scram_iterations",
    "server_encoding": "server_encoding",
    "server_version": "server_version",
    "session_authorization": "session_authorization",
    "standard_conforming_strings": "standard_conforming_strings",
    "timezone": "TimeZone",
}
_ZONES: Final = frozenset(("utc", "gmt", "etc/utc", "etc/gmt", "uct", "zulu", "z", "+00", "+00:00", "0", "default"))


def is_known(name: str) -> bool:
    """Return whether there is such a variable."""
    return name in _DEFAULTS or name in _IGNORED


class Variables:
    """The variables of one session, by their names in lower case."""

    def __init__(self, user: str, *, is_superuser: bool) -> None:
        self._values = _DEFAULTS | {"session_authorization": user, "is_superuser": "on" if is_superuser else "off"}
        self._at_start = dict(self._values)
        self._before_local: dict[str, str] = {}

    def get(self, name: str) -> str:
        """The value of a variable. Raises PgError if there is none."""
        found = self._values.get(name)
        if found is not None:
            return found
        if name in _IGNORED:
            return ""
        raise _unknown(name)

    def all(self) -> dict[str, str]:
        """All variables by name, in order."""
        return dict(sorted(self._values.items()))

    def set(self, name: str, value: str | None, *, is_local: bool = False) -> str | None:
        """Set a variable, or reset it; return its name if the client hears of the change. Raises PgError."""
        if value is None:
            value = self._at_start.get(name, "")
            if name not in self._values and name not in _IGNORED and "." not in name:
                raise _unknown(name)
        else:
            value = _checked(name, value)
            if name not in self._values and len(self._values) >= len(_DEFAULTS) + _MAX_CUSTOM:
                raise PgError("53400", f"a session has at most {_MAX_CUSTOM} variables of its own")
        old = self._values.get(name, "")
        if is_local:
            self._before_local.setdefault(name, old)
        self._values[name] = value
        return name if value != old and name in _REPORTED else None

    def set_at_start(self, name: str, value: str) -> None:
        """Set a variable as the client gives it when it connects, where RESET goes back to. Raises PgError.

        The time zone is left as it is: values are instants, and drivers send that of their machine unasked.
        """
        name = name.lower()
        if name in ("timezone", "datestyle"):
            return
        self.set(name, value)
        self._at_start[name] = self._values[name]

    def reset_all(self) -> list[str]:
        """Reset all variables; return the names of those that the client hears of."""
        changed = [name for name, value in self._at_start.items() if self._values.get(name) != value]
        self._values = dict(self._at_start)
        return [name for name in changed if name in _REPORTED]

    def end_transaction(self) -> list[str]:
        """Undo SET LOCAL; return the names of those that the client hears of."""
        if not self._before_local:
            return []
        undone, self._before_local = self._before_local, {}
        self._values.update(undone)
        return [name for name in undone if name in _REPORTED]

    def reported(self) -> Iterator[tuple[str, str]]:
        """Names and values that the client hears when it connects."""
        for name, shown in _REPORTED.items():
            yield shown, self._values[name]

    def shown(self, name: str) -> tuple[str, str]:
        """A variable as the client knows it, and its value."""
        return _REPORTED.get(name, name), self._values[name]

    @property
    def namespace(self) -> str:
        """The namespace of names without one."""
        return self._values["search_path"]

    @namespace.setter
    def namespace(self, value: str) -> None:
        self._values["search_path"] = value

    @property
    def statement_timeout(self) -> float:
        """Seconds; 0 for that of the server."""
        return _milliseconds("statement_timeout", self._values["statement_timeout"]) / 1000

    @property
    def is_read_only(self) -> bool:
        """Return whether transactions are read-only."""
        return self._values["transaction_read_only"] == "on" or self._values["default_transaction_read_only"] == "on"


def _checked(name: str, value: str) -> str:
    """The value as it is kept."""
    if len(value) > _MAX_LENGTH:
        raise PgError(_INVALID, f"the value of {name} is longer than {_MAX_LENGTH} characters")
    if name in _READ_ONLY:
        raise PgError(_FIXED, f'parameter "{name}" cannot be changed')
    check = _CHECKS.get(name)
    if check is not None:
        return check(name, value)
    if name in _DEFAULTS or name in _IGNORED or "." in name:
        return value
    raise _unknown(name)


def _unknown(name: str) -> PgError:
    return PgError(_UNKNOWN, f'unrecognized configuration parameter "{name[:80]}"')


def _invalid(name: str, value: str, hint: str) -> PgError:
    return PgError(_INVALID, f'invalid value for parameter "{name}": "{value[:80]}"', hint=hint)


def _encoding(name: str, value: str) -> str:
    if value.strip("'").lower().replace("-", "").replace("_", "") not in ("utf8", "unicode", "sqlascii"):
        raise _invalid(name, value, "There is UTF8 only.")
    return "UTF8"


def _date_style(name: str, value: str) -> str:
    if not value.lower().startswith("iso"):
        raise _invalid(name, value, "There is ISO only.")
    return "ISO, MDY"


def _zone(name: str, value: str) -> str:
    if value.lower() not in _ZONES:
        raise _invalid(name, value, "Times are in UTC.")
    return "UTC"


def _isolation(name: str, value: str) -> str:
    if value.lower() not in ("read committed", "read uncommitted"):
        raise PgError("0A000", f"isolation level {value[:40]} is not supported: there is READ COMMITTED")
    return "read committed"


def _only(*allowed: str) -> Callable[[str, str], str]:
    def check(name: str, value: str) -> str:
        if value.lower() not in allowed:
            raise _invalid(name, value, f"There is {allowed[0]} only.")
        return allowed[0]

    return check


def _boolean(name: str, value: str) -> str:
    found = _ON.get(value.lower())
    if found is None:
        raise _invalid(name, value, "It is on or off.")
    return found


def _milliseconds(name: str, value: str) -> float:
    match = _DURATION.fullmatch(value.lower())
    unit = None if match is None else _MILLISECONDS.get(match[2] or "ms")
    if match is None or unit is None:
        raise _invalid(name, value, "It is a number of milliseconds, or one with a unit, as 5s.")
    return float(match[1]) * unit


def _duration(name: str, value: str) -> str:
    _milliseconds(name, value)
    return value


def _path(name: str, value: str) -> str:
    """The first schema that is a namespace of tables."""
    for each in value.split(","):
        found = each.strip().strip('"')
        if found and found not in ("$user", "pg_catalog", "pg_temp"):
            return found
    return DEFAULT_NAMESPACE


_CHECKS: Final[dict[str, Callable[[str, str], str]]] = {
    "client_encoding": _encoding,
    "datestyle": _date_style,
    "timezone": _zone,
    "default_transaction_isolation": _isolation,
    "transaction_isolation": _isolation,
    "standard_conforming_strings": _only("on", "true", "yes", "1"),
    "bytea_output": _only("hex"),
    "intervalstyle": _only("postgres"),
    "default_transaction_read_only": _boolean,
    "transaction_read_only": _boolean,
    "statement_timeout": _duration,
    "search_path": _path,
}
