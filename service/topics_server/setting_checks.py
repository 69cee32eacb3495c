"""Checks of settings that concern more than the form of one: safety, and what goes together."""

import re
from typing import TYPE_CHECKING, Final

from topics_net.addresses import is_loopback
from topics_service.api.access.hosts import read_names, read_origins

if TYPE_CHECKING:
    from topics_server.settings import Settings

_MOST_LINGER_MS: Final = 500  # a follower's read waits for a second
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


class SettingsError(Exception):
    """The settings can't be served with: the server refuses to start and says why."""


def check(settings: "Settings") -> None:
    """Raise SettingsError for settings that are unsafe or don't go together."""
    if not settings.has_authentication and not is_loopback(settings.host) and not settings.allow_insecure_no_auth:
        raise SettingsError(
            f"{settings.host} is not a loopback address and there are no API keys, users or tokens: everyone who "
            "reaches it could read and delete everything. Set TOPICS_API_KEYS, or TOPICS_ALLOW_INSECURE_NO_AUTH=1 if "
            "that is what you want"
        )
    try:
        read_names(settings.allowed_hosts)
    except ValueError as error:
        raise SettingsError(
            f"TOPICS_ALLOWED_HOSTS: {str(error)!r} is no host name; give names without scheme and port, or * for any"
        ) from None
    try:
        read_origins(settings.cors_origins)
    except ValueError as error:
        raise SettingsError(
            f"TOPICS_CORS_ORIGINS: {str(error)!r} is not an origin; list each one exactly, with scheme, host and port "
            "and without a path, such as https://app.example,http://localhost:5173"
        ) from None
    if settings.kafka_tls_key and not settings.kafka_tls_cert:
        raise SettingsError("TOPICS_KAFKA_TLS_KEY needs TOPICS_KAFKA_TLS_CERT")
    if settings.tls_key_file and not settings.tls_cert_file:
        raise SettingsError("TOPICS_TLS_KEY_FILE needs TOPICS_TLS_CERT_FILE")
    if settings.tls_client_ca_file and not settings.tls_cert_file:
        raise SettingsError("TOPICS_TLS_CLIENT_CA_FILE needs TOPICS_TLS_CERT_FILE")
    _check_cluster(settings)
    _check_processes(settings)


def _check_cluster(settings: "Settings") -> None:
    """Raise SettingsError for settings of a cluster that don't go together."""
    if not settings.cluster_store:
        for name in ("etcd", "node", "advertised", "secret_file", "zone"):
            if getattr(settings, f"cluster_{name}"):
                raise SettingsError(f"TOPICS_CLUSTER_{name.upper()} needs TOPICS_CLUSTER_STORE")
        return
    for name in ("etcd", "secret_file"):
        if not getattr(settings, f"cluster_{name}"):
            raise SettingsError(f"TOPICS_CLUSTER_STORE needs TOPICS_CLUSTER_{name.upper()}")
    if _NAME.fullmatch(settings.node_name) is None:
        raise SettingsError(
            f"TOPICS_CLUSTER_NODE={settings.node_name!r} is no name of a node: 1 to 64 letters, digits, dots, - and _"
        )
    if _NAME.fullmatch(settings.cluster) is None:
        raise SettingsError(
            f"TOPICS_CLUSTER={settings.cluster!r} is no name of a cluster: 1 to 64 letters, digits, dots, - and _"
        )
    if settings.node_host in ("", "0.0.0.0", "::"):
        raise SettingsError(
            f"other nodes can't reach {settings.node_host or 'an empty host'}: set TOPICS_CLUSTER_ADVERTISED to a host "
            "of this machine"
        )
    ones = ("lease_seconds", "window", "capacity", "followers")
    for name, least, shown in (*((one, 1, "1") for one in ones), ("log_seconds", 3600, "1h")):
        if getattr(settings, f"cluster_{name}") < least:
            raise SettingsError(f"TOPICS_CLUSTER_{name.upper()} must be at least {shown}")
    if settings.cluster_linger_ms > _MOST_LINGER_MS:
        raise SettingsError(f"TOPICS_CLUSTER_LINGER_MS must be at most {_MOST_LINGER_MS} ms")
    for name in ("bulk_readers", "wal_archive_seconds"):
        if getattr(settings, name):
            raise SettingsError(f"TOPICS_{name.upper()} is for a single process: in a cluster it must be 0")


def _check_processes(settings: "Settings") -> None:
    """Raise SettingsError for settings that don't go with several processes."""
    if not settings.shards:
        raise SettingsError("TOPICS_SHARDS must be at least 1")
    if not settings.processes:
        return
    if settings.cluster_store:
        raise SettingsError("TOPICS_PROCESSES is not for a node of a cluster: unset it, or TOPICS_CLUSTER_STORE")
    if settings.bulk_readers:
        raise SettingsError("TOPICS_BULK_READERS is for a data directory without shards: it must be 0")
