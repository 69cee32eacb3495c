"""Settings that are secrets: each is a variable, or a file that another variable names.

Packages of the server are imported where they are used, as in `settings`.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from topics_server.secret_files import SecretsError as SecretsError

if TYPE_CHECKING:
    from topics_server.keys import Keys
    from topics_service.api.access.tokens import TokenKey
    from topics_service.api.access.users import UserRow

T = TypeVar("T")

NAMES: Final = ("api_keys", "sql_users", "jwt_secret")
"""Their texts are not kept, and their values are never shown. The variable is `TOPICS_API_KEYS`, and so on."""


def read(environ: Mapping[str, str], files: Mapping[str, Any]) -> dict[str, Any]:
    """Read all of them, by name; None where there is none. `files` has the settings that name files.

    Raises SecretsError.
    """
    return {
        "api_keys": _keys(environ.get("TOPICS_API_KEYS", ""), files.get("api_keys_file", "")),
        "sql_users": _users(environ.get("TOPICS_SQL_USERS", ""), files.get("sql_users_file", "")),
        "jwt_secret": _token_key(environ.get("TOPICS_JWT_SECRET", ""), files.get("jwt_public_key_file", "")),
    }


def _keys(text: str, path: str) -> "Keys | None":
    from topics_server.keys import from_file, from_text

    return _either("TOPICS_API_KEYS", text, "TOPICS_API_KEYS_FILE", path, from_text, from_file)


def _users(text: str, path: str) -> "tuple[UserRow, ...] | None":
    if not text and not path:
        return None
    from topics_server.users import from_file, from_text

    return _either("TOPICS_SQL_USERS", text, "TOPICS_SQL_USERS_FILE", path, from_text, from_file)


def _token_key(text: str, path: str) -> "TokenKey | None":
    if not text and not path:
        return None
    from topics_server.token_keys import from_file, from_text  # imports a library that few servers need

    return _either("TOPICS_JWT_SECRET", text, "TOPICS_JWT_PUBLIC_KEY_FILE", path, from_text, from_file)


def _either(
    variable: str,
    text: str,
    file_variable: str,
    path: str,
    from_text: Callable[[str], T],
    from_file: Callable[[str], T],
) -> T:
    if text and path:
        raise SecretsError(f"{variable} and {file_variable} are both set: leave one of them out")
    return from_file(path) if path else from_text(text)
