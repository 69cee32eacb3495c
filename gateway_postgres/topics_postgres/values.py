"""Functions of the session, as literals in the statements that call them."""

import time
from typing import TYPE_CHECKING

from topics_postgres.errors import PgError
from topics_postgres.statements import Call
from topics_postgres.variables import SERVER_VERSION, is_known

if TYPE_CHECKING:
    from topics_postgres.session import Session


def session_value(session: "Session", call: Call) -> str:
    """The literal that stands for a call. Raises PgError."""
    match call.function:
        case "version":
            return quoted(f"PostgreSQL {SERVER_VERSION} (topics)")
        case "current_database" | "current_catalog":
            return quoted(session.database)
        case "current_schema":
            return quoted(session.variables.namespace)
        case "current_user" | "session_user" | "current_role":
            return quoted(session.user)
        case "pg_backend_pid" | "txid_current" | "pg_current_xact_id":
            return str(session.pid)
        case "pg_is_in_recovery":
            return "FALSE"
        case "pg_postmaster_start_time":
            started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(session.server.started))
            return f"CAST({quoted(started)} AS TIMESTAMP)"
        case "pg_advisory_unlock_all":
            return "''"
        case "inet_server_addr" | "inet_server_port":
            return "CAST(NULL AS TEXT)"
        case "current_setting":
            return _setting(session, call)
        case "set_config":
            return _configured(session, call)
        case _:
            raise PgError("42883", f"function {call.function}() does not exist")


def quoted(text: str) -> str:
    """A literal of SQL."""
    return "'{}'".format(text.replace("'", "''"))


def _setting(session: "Session", call: Call) -> str:
    if not call.arguments:
        raise PgError("42883", "function current_setting() does not exist")
    name = call.arguments[0].lower()
    if len(call.arguments) > 1 and call.arguments[1] == "true" and not is_known(name):
        return "CAST(NULL AS TEXT)"
    return quoted(session.variables.get(name))


def _configured(session: "Session", call: Call) -> str:
    if len(call.arguments) != 3:
        raise PgError("42883", "function set_config() takes a name, a value and a boolean")
    name, value, is_local = call.arguments
    session.set_variable(name.lower(), value, is_local=is_local == "true")
    return quoted(session.variables.get(name.lower()))
