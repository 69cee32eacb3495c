"""The key that verifies tokens, from the environment or from a file."""

from topics_server.secret_files import SecretsError, read_file
from topics_service.api.access.tokens import TokenKey


def from_text(text: str) -> TokenKey:
    """The key of TOPICS_JWT_SECRET. Raises SecretsError."""
    try:
        return TokenKey.secret(text.encode(errors="surrogateescape"))
    except ValueError as error:
        raise SecretsError(f"TOPICS_JWT_SECRET can't be used: {error}") from None


def from_file(path: str) -> TokenKey:
    """The key of TOPICS_JWT_PUBLIC_KEY_FILE. Raises SecretsError."""
    try:
        return TokenKey.public(read_file("TOPICS_JWT_PUBLIC_KEY_FILE", path))
    except ValueError as error:
        raise SecretsError(f"TOPICS_JWT_PUBLIC_KEY_FILE {path}: {error}") from None
