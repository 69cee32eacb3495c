"""Object stores by their URL, through `obstore`: of backups, and of clusters."""

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from obstore.exceptions import BaseError
from obstore.store import ObjectStore, from_url

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

STORE_ERRORS: Final = (BaseError, FileNotFoundError)
"""The errors of a store. FileNotFoundError: of an object, or of the bucket."""
_ERROR_LENGTH: Final = 500
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

    Keys and settings come from the environment, as the store's own tools read them. A request that fails for the moment
    is repeated for `retry_seconds`; with 0 it is not. Connects only when it is used. Raises ValueError where the URL is
    none.
    """
    retry: RetryConfig = {"retry_timeout": timedelta(seconds=retry_seconds)}
    if not retry_seconds:
        retry["max_retries"] = 0
    try:
        return from_url(url, retry_config=retry, client_options=_with_environment(url, client))
    except (BaseError, ValueError) as error:
        raise ValueError(one_line(error)) from error


def _with_environment(url: str, client: "ClientConfig | None") -> Any:
    """Return the options with those of the environment, which obstore forgets when it is given some."""
    if client is None:
        return None
    kind = _VARIABLES.get(url.partition(":")[0], "")
    return {name: value for name in _CLIENT_OPTIONS if (value := os.environ.get(kind + name.upper()))} | client


def one_line(error: Exception) -> str:
    """Return the store's error in one line, without its debug dump."""
    return " ".join(str(error).partition("Debug source:")[0].split())[:_ERROR_LENGTH]
