"""Object stores by their URL, through `obstore`: of backups, and of clusters."""

import configparser
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from obstore.exceptions import BaseError
from obstore.store import ObjectStore, from_url

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Credential

STORE_ERRORS: Final = (BaseError, FileNotFoundError)
"""The errors of a store. FileNotFoundError: of an object, or of the bucket."""
_ERROR_LENGTH: Final = 500
_KEYS_SECONDS: Final = 1  # after which keys of a file are read again
_VARIABLES: Final = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}
_CLIENT_OPTIONS: Final = (
    "allow_http",
    "allow_invalid_certificates",
    "proxy_url",
    "proxy_ca_certificate",
    "proxy_excludes",
)


def open_store(url: str, retry_seconds: float, client: "ClientConfig | None" = None) -> ObjectStore:
    """Return the store of a URL: s3://bucket/prefix, gs://, az://.

    Keys and settings come from the environment, as the store's own tools read them; keys of S3 also from the file
    AWS_SHARED_CREDENTIALS_FILE, which is read again while the store is in use, so that they can be changed. A request
    that fails for the moment is repeated for `retry_seconds`; with 0 it is not. Connects only when it is used. Raises
    ValueError where the URL is none.
    """
    retry: RetryConfig = {"retry_timeout": timedelta(seconds=retry_seconds)}
    if not retry_seconds:
        retry["max_retries"] = 0
    try:
        return from_url(
            url,
            retry_config=retry,
            client_options=_with_environment(url, client),
            **_keys_of_a_file(url),
        )
    except (BaseError, ValueError) as error:
        raise ValueError(one_line(error)) from error


def _with_environment(url: str, client: "ClientConfig | None") -> Any:
    """Return the options with those of the environment, which obstore forgets when it is given some."""
    if client is None:
        return None
    kind = _VARIABLES.get(url.partition(":")[0], "")
    return {name: value for name in _CLIENT_OPTIONS if (value := os.environ.get(kind + name.upper()))} | client


def _keys_of_a_file(url: str) -> dict[str, Any]:
    """Return what lets obstore ask for the keys, if a file has them."""
    path = os.environ.get("AWS_SHARED_CREDENTIALS_FILE")
    if not path or os.environ.get("AWS_ACCESS_KEY_ID") or not url.startswith("s3"):
        return {}
    return {"credential_provider": _reader(path, os.environ.get("AWS_PROFILE", "default"))}


def _reader(path: str, profile: str) -> "Callable[[], S3Credential]":
    def read() -> "S3Credential":
        found = configparser.ConfigParser(interpolation=None)
        with open(path, encoding="utf-8") as file:
            found.read_file(file)
        keys = found[profile]
        return {
            "access_key_id": keys["aws_access_key_id"],
            "secret_access_key": keys["aws_secret_access_key"],
            "token": keys.get("aws_session_token"),
            "expires_at": datetime.now(UTC) + timedelta(seconds=_KEYS_SECONDS),
        }

    return read


def one_line(error: Exception) -> str:
    """Return the store's error in one line, without its debug dump."""
    return " ".join(str(error).partition("Debug source:")[0].split())[:_ERROR_LENGTH]
