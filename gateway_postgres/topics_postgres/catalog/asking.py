"""Variables and functions of a session, for its queries of the catalog."""

from typing import TYPE_CHECKING, Any, Final

from topics_postgres.catalog.answering import Asking
from topics_postgres.statements import Call
from topics_postgres.values import session_value
from topics_service.api.access.roles import Capability, has
from topics_sql.grammar.cursor import RESERVED

if TYPE_CHECKING:
    from topics_postgres.session import Session

_RIGHTS: Final = {
    "SELECT": Capability.SELECT,
    "INSERT": Capability.INSERT,
    "UPDATE": Capability.UPDATE,
    "DELETE": Capability.DELETE,
    "TRUNCATE": Capability.DEFINE_DROP,
    "CREATE": Capability.DEFINE,
    "USAGE": Capability.SELECT,
    "CONNECT": Capability.SELECT,
}
_KEYWORDS: Final = " ".join(sorted(RESERVED))
_ALIKE: Final = {"user": "current_user"}


def asking(session: "Session") -> Asking:
    """Inputs that queries of the catalog take from a session."""
    variables = session.variables
    settings = variables.all()
    return Asking(
        {
            "database": session.database,
            "is_superuser": variables.get("is_superuser") == "on",
            "keywords": _KEYWORDS,
            "path": variables.namespace,
            "pid": session.pid,
            "rights": [word for word, capability in _RIGHTS.items() if has(session.principal, capability)],
            "settings": {"key": list(settings), "value": list(settings.values())},
            "user": session.user,
        },
        lambda name, arguments: _value(session, name, arguments),
        (session.principal.prefixes, variables.get("is_superuser")),
    )


def _value(session: "Session", name: str, arguments: list[str]) -> Any:
    """The value of a function of the session. Raises PgError."""
    text = session_value(session, Call(_ALIKE.get(name, name), tuple(arguments), 0, 0, is_column=False))
    if text.startswith("CAST("):
        text = text[5:].rpartition(" AS ")[0]
    if text.startswith("'"):
        return text[1:-1].replace("''", "'")
    if text.isdecimal():
        return int(text)
    return {"TRUE": True, "FALSE": False}.get(text)
