"""Settings of authentication: what is refused before anything is touched, and what never shows."""

from pathlib import Path

import pytest

from topics_server.settings import SettingsError, load


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "no-such-host.invalid", "0.0.0.0:80"])
def test_a_public_address_needs_keys(host: str) -> None:
    with pytest.raises(SettingsError, match="no API keys"):
        load({"TOPICS_HOST": host}, {})
    with pytest.raises(SettingsError, match="no API keys"):
        load({"TOPICS_HOST": host, "TOPICS_API_KEYS": " , ", "TOPICS_ALLOW_INSECURE_NO_AUTH": "false"}, {})
    assert load({"TOPICS_HOST": host, "TOPICS_API_KEYS": "k"}, {}).api_keys is not None
    assert load({"TOPICS_HOST": host, "TOPICS_API_KEYS": ":read"}, {}).api_keys is not None
    assert load({"TOPICS_HOST": host, "TOPICS_ALLOW_INSECURE_NO_AUTH": "1"}, {}).api_keys is None


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1.2.3", "::1", "[::1]:80"])
def test_a_loopback_address_does_not(host: str) -> None:
    assert load({"TOPICS_HOST": host}, {}).api_keys is None


def test_keys_never_show() -> None:
    settings = load({"TOPICS_API_KEYS": "s3cret:read,s3cret2"}, {})
    assert "s3cret" not in repr(settings)
    with pytest.raises(SettingsError) as error:
        load({"TOPICS_API_KEYS": "s3cret:s3cret"}, {})
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize(("text", "on"), [("1", True), ("true", True), ("false", False), ("0", False), ("", False)])
def test_probe_auth_is_on_for_exactly_two_words(text: str, on: bool) -> None:
    assert load({"TOPICS_PROBE_AUTH": text}, {}).probe_auth is on


def test_keys_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# one\ns3cret:read\n")
    settings = load({"TOPICS_API_KEYS_FILE": str(file)}, {})
    assert settings.api_keys is not None
    assert settings.api_keys.find(b"s3cret") is not None
    assert "s3cret" not in repr(settings)
    assert load({"TOPICS_API_KEYS_FILE": str(file), "TOPICS_HOST": "0.0.0.0"}, {}).host == "0.0.0.0"
    with pytest.raises(SettingsError, match="both set"):
        load({"TOPICS_API_KEYS_FILE": str(file), "TOPICS_API_KEYS": "s3cret"}, {})
    file.write_text("s3cret:s3cret\n")
    with pytest.raises(SettingsError, match="line 1") as error:
        load({"TOPICS_API_KEYS_FILE": str(file)}, {})
    assert "s3cret" not in str(error.value)


def test_a_key_of_tls_needs_its_certificate() -> None:
    with pytest.raises(SettingsError, match="needs TOPICS_TLS_CERT_FILE"):
        load({"TOPICS_TLS_KEY_FILE": "key.pem"}, {})
    with pytest.raises(SettingsError, match="TOPICS_TLS_CLIENT_CA_FILE needs TOPICS_TLS_CERT_FILE"):
        load({"TOPICS_TLS_CLIENT_CA_FILE": "ca.pem"}, {})


@pytest.mark.parametrize(
    ("env", "host", "served"),
    [
        ({"TOPICS_HOST": "Box.lan:80", "TOPICS_ALLOW_INSECURE_NO_AUTH": "1"}, b"box.lan:4000", True),
        ({"TOPICS_HOST": "box.lan.", "TOPICS_ALLOW_INSECURE_NO_AUTH": "1"}, b"box.lan", True),
        ({"TOPICS_HOST": "[::1]:80"}, b"box.lan", False),
        ({"TOPICS_HOST": "0.0.0.0", "TOPICS_ALLOW_INSECURE_NO_AUTH": "1"}, b"box.lan", False),
        ({"TOPICS_ALLOWED_HOSTS": "a , BOX.lan."}, b"box.lan", True),
        ({"TOPICS_ALLOWED_HOSTS": "a,*"}, b"box.lan", True),
        ({"TOPICS_ALLOWED_HOSTS": "::1, [2001:db8::1], 10.0.0.7"}, b"box.lan", False),
        ({"TOPICS_ALLOWED_HOSTS": " , "}, b"box.lan", False),
    ],
)
def test_hosts_that_are_served_without_keys(env: dict[str, str], host: bytes, served: bool) -> None:
    assert load(env, {}).hosts.serves(host) is served


@pytest.mark.parametrize("text", ["http://a", "a:80", "a:", "*.a", "a b", "a/", "a,,.b", "\u00e4", "u@a", "**"])
def test_a_host_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"TOPICS_ALLOWED_HOSTS: .* is no host name"):
        load({"TOPICS_ALLOWED_HOSTS": text}, {})


@pytest.mark.parametrize(
    ("text", "origins"),
    [
        ("", set()),
        (" , ", set()),
        ("https://app.example,http://localhost:5173", {b"https://app.example", b"http://localhost:5173"}),
        (" HTTPS://App.Example:443 ,http://[2001:DB8::1]:80,", {b"https://app.example", b"http://[2001:db8::1]"}),
        ("http://a:443,https://a:80,https://10.0.0.1:1", {b"http://a:443", b"https://a:80", b"https://10.0.0.1:1"}),
    ],
)
def test_origins_are_kept_as_browsers_write_them(text: str, origins: set[bytes]) -> None:
    assert load({"TOPICS_CORS_ORIGINS": text}, {}).origins == origins


@pytest.mark.parametrize(
    "text",
    [
        "*", "null", "app.example", "//app.example", "https://", "https://app.example/", "https://app.example/x",
        "https://app.example?", "https://app.example#", "https://*.example", "https://app.example:", "https://a:65536",
        "https://app.example.", "https://app.example.:81", "https://u@a", "ftp://a", "chrome-extension://abc",
        "https://a;https://b", "https://a https://b", "https://\u00e4", "file://",
    ],
)  # fmt: skip
def test_an_origin_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"TOPICS_CORS_ORIGINS: .* is not an origin"):
        load({"TOPICS_CORS_ORIGINS": f"https://fine.example,{text}"}, {})
