"""A server's variables, in another process."""

from pathlib import Path

import pytest

from topics_client.environment import is_service_link, own_http


@pytest.mark.parametrize(
    ("env", "host", "port"),
    [
        ({}, "127.0.0.1", 4000),
        ({"TOPICS_PORT": ""}, "127.0.0.1", 4000),
        ({"TOPICS_HOST": "0.0.0.0", "TOPICS_PORT": "80"}, "127.0.0.1", 80),
        ({"TOPICS_HOST": "::", "TOPICS_PORT": "80"}, "::1", 80),
        ({"TOPICS_HOST": "[::1]:81", "TOPICS_PORT": "80"}, "::1", 81),
        ({"TOPICS_HOST": "0.0.0.0:82"}, "127.0.0.1", 82),
        ({"TOPICS_HOST": "10.0.0.7"}, "10.0.0.7", 4000),
        ({"TOPICS_PORT": "tcp://10.0.0.1:4000", "TOPICS_SERVICE_HOST": "10.0.0.1"}, "127.0.0.1", 4000),
        ({"TOPICS_PORT": "0"}, "127.0.0.1", 0),
        ({"TOPICS_PORT": "0", "TOPICS_PORT_FILE": "/no/such/file"}, "127.0.0.1", 0),
    ],
)
def test_where_the_server_of_an_environment_is(env: dict[str, str], host: str, port: int) -> None:
    assert own_http(env) == (host, port)


def test_a_port_that_the_system_picked_stands_in_its_file(tmp_path: Path) -> None:
    file = tmp_path / "port"
    file.write_text("[::1]:43211")
    assert own_http({"TOPICS_HOST": "::1", "TOPICS_PORT": "0", "TOPICS_PORT_FILE": str(file)}) == ("::1", 43211)


@pytest.mark.parametrize("port", ["abc", "-1", "123456", "\u00b2"])
def test_a_port_that_is_none(port: str) -> None:
    with pytest.raises(ValueError, match="is not a port, a number from 0 to 65535"):
        own_http({"TOPICS_PORT": port})


def test_what_kubernetes_sets() -> None:
    assert is_service_link("TOPICS_PORT", "tcp://10.0.0.1:4000")
    assert is_service_link("TOPICS_PORT_4000_TCP_ADDR", "10.0.0.1")
    assert not is_service_link("TOPICS_PORT", "4000")
    assert not is_service_link("TOPICS_PORT_FILE", "/run/port")
    assert not is_service_link("TOPICS_HOST", "tcp://10.0.0.1:4000")
