"""Settings of a cluster: what each may be, and which go together."""

import pytest

from topics_server.settings import SettingsError, load

CLUSTER = {
    "TOPICS_CLUSTER_STORE": "s3://bucket/prefix",
    "TOPICS_CLUSTER_ETCD": "10.0.0.1:2379,[::1]:2379",
    "TOPICS_CLUSTER_SECRET_FILE": "/run/secrets/cluster",
    "TOPICS_CLUSTER_NODE": "a-1",
}


def test_a_cluster_has_its_store_its_coordinator_and_a_secret() -> None:
    settings = load(CLUSTER | {"TOPICS_CLUSTER_STORE": "s3://bucket/prefix/", "TOPICS_HOST": "127.0.0.2"}, {})
    assert settings.cluster_store == "s3://bucket/prefix"
    assert settings.cluster_etcd == "10.0.0.1:2379,[::1]:2379"
    assert (settings.node_name, settings.node_host) == ("a-1", "127.0.0.2")
    assert (settings.cluster_lease_seconds, settings.cluster_window, settings.cluster_linger_ms) == (2, 4, 25)
    assert settings.cluster_log_seconds == 3600


def test_a_node_without_a_name_has_that_of_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "machine-7")
    assert load(CLUSTER | {"TOPICS_CLUSTER_NODE": ""}, {}).node_name == "machine-7"


@pytest.mark.parametrize("name", ["ETCD", "NODE", "ADVERTISED", "SECRET_FILE", "ZONE"])
def test_settings_of_a_node_are_refused_without_a_store(name: str) -> None:
    with pytest.raises(SettingsError, match=f"TOPICS_CLUSTER_{name} needs TOPICS_CLUSTER_STORE"):
        load({f"TOPICS_CLUSTER_{name}": "127.0.0.1:1"}, {})


@pytest.mark.parametrize("name", ["ETCD", "SECRET_FILE"])
def test_a_store_alone_is_no_cluster(name: str) -> None:
    with pytest.raises(SettingsError, match=f"TOPICS_CLUSTER_STORE needs TOPICS_CLUSTER_{name}"):
        load(CLUSTER | {f"TOPICS_CLUSTER_{name}": ""}, {})


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"TOPICS_CLUSTER_STORE": "bucket/prefix"}, "is not the URL of an object store"),
        ({"TOPICS_CLUSTER_STORE": "s3:///prefix"}, "is not the URL of an object store"),
        ({"TOPICS_CLUSTER_ETCD": "10.0.0.1"}, "is not a list of addresses"),
        ({"TOPICS_CLUSTER_ETCD": "http://10.0.0.1:2379"}, "is not a list of addresses"),
        ({"TOPICS_CLUSTER_ETCD": "10.0.0.1:2379,"}, "is not a list of addresses"),
        ({"TOPICS_CLUSTER_NODE": "a/b"}, "is no name of a node"),
        ({"TOPICS_CLUSTER": "a b"}, "is no name of a cluster"),
        ({"TOPICS_HOST": "0.0.0.0", "TOPICS_ALLOW_INSECURE_NO_AUTH": "1"}, "set TOPICS_CLUSTER_ADVERTISED"),
        ({"TOPICS_CLUSTER_LEASE_SECONDS": "0"}, "TOPICS_CLUSTER_LEASE_SECONDS must be at least 1"),
        ({"TOPICS_CLUSTER_LOG_SECONDS": "59m"}, "TOPICS_CLUSTER_LOG_SECONDS must be at least 1h"),
        ({"TOPICS_CLUSTER_WINDOW": "0"}, "TOPICS_CLUSTER_WINDOW must be at least 1"),
        ({"TOPICS_CLUSTER_WINDOW": "17"}, "is not a number from 0 to 16"),
        ({"TOPICS_CLUSTER_LINGER_MS": "501"}, "TOPICS_CLUSTER_LINGER_MS must be at most 500 ms"),
        ({"TOPICS_BULK_READERS": "1"}, "TOPICS_BULK_READERS is for a single process"),
        ({"TOPICS_WAL_ARCHIVE_SECONDS": "1d"}, "TOPICS_WAL_ARCHIVE_SECONDS is for a single process"),
    ],
)
def test_what_does_not_go_together_is_refused(changed: dict[str, str], error: str) -> None:
    with pytest.raises(SettingsError, match=error):
        load(CLUSTER | changed, {})
