"""Where a server is, as users write it."""

import pytest

from topics_client.address import Address


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOPICS_URL", raising=False)
    monkeypatch.delenv("TOPICS_API_KEY", raising=False)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        (None, Address("127.0.0.1", 4001)),
        ("example.org", Address("example.org", 4001)),
        ("example.org:9", Address("example.org", 9)),
        ("topics://k%40y@example.org:9", Address("example.org", 9, "k@y")),
        ("topics://alice:p%40ss:w%C3%B6rd@example.org:9", Address("example.org", 9, "alice:p@ss:wörd")),
        ("topics://[::1]:9/", Address("::1", 9)),
        ("topics+tls://example.org", Address("example.org", 4001, None, tls=True)),
        ("topics+tls://example.org?ca=/c%20a.pem", Address("example.org", 4001, None, tls=True, ca_file="/c a.pem")),
    ],
)
def test_what_a_url_says(url: str | None, address: Address) -> None:
    assert Address.parse(url) == address


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://example.org", "scheme"),
        ("topics://", "topics://KEY@HOST:PORT"),
        ("topics://example.org:", "topics://KEY@HOST:PORT"),
        ("topics://example.org:65536", "0-65535"),
        ("topics://example.org/topic", "topics://KEY@HOST:PORT"),
        ("topics://example.org?ca=x", "no parameter but ca"),
        ("topics+tls://example.org?c=x", "no parameter but ca"),
    ],
)
def test_what_is_no_url_is_refused_without_showing_a_key(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        Address.parse(url.replace("example.org", "s3cret@example.org"))
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "topics://s3cret\uff0fx@example.org",  # a character that Python takes for a slash, and quotes the whole of it
        "topics://abc:s3cret/x@example.org",
        "topics://abc?s3cret@example.org:9",
        "topics://[s3cret]@example.org",
    ],
)
def test_a_key_that_is_not_escaped_is_not_shown_either(url: str) -> None:
    with pytest.raises(ValueError, match="a server's URL") as caught:
        Address.parse(url)
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize("key", ["s3cret\n", "s3cr\u00e9t", "alice:s3cret\n"])
def test_a_key_that_no_header_can_carry(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("TOPICS_API_KEY", key)
    with pytest.raises(ValueError, match="a key is printable ASCII") as caught:
        Address.parse()
    assert "s3cr" not in str(caught.value)


def test_the_environment_fills_in_what_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_URL", "topics://example.org:9")
    monkeypatch.setenv("TOPICS_API_KEY", "from-env")
    assert Address.parse() == Address("example.org", 9, "from-env")
    assert Address.parse("topics://in-url@other").key == "in-url"
    assert Address.parse("topics://in-url@other", key="given").key == "given"


@pytest.mark.parametrize(
    ("key", "header"),
    [
        ("k3y", "Bearer k3y"),
        ("a.b.c", "Bearer a.b.c"),
        ("alice:pw", "Basic YWxpY2U6cHc="),
        ("alice:p:w", "Basic YWxpY2U6cDp3"),
        ("alice:ü", "Basic YWxpY2U6w7w="),
        (None, None),
    ],
)
def test_a_key_with_a_colon_is_a_user_and_password(key: str | None, header: str | None) -> None:
    assert Address("example.org", key=key).authorization == header


def test_a_key_is_never_shown() -> None:
    address = Address.parse("topics+tls://s3cret@[::1]:9?ca=/a&ca=/b")
    assert (address.key, address.target, str(address)) == ("s3cret", "[::1]:9", "topics+tls://[::1]:9?ca=/b")
    assert "s3cret" not in f"{address!r}{address}"


@pytest.mark.parametrize(
    "given",
    [
        "topics+tls://k,y@a:1,[::1]:2,c?ca=/x",
        ["topics+tls://k,y@a:1?ca=/x", "topics+tls://k,y@[::1]:2,c?ca=/x"],
        ["topics+tls://k,y@a:1?ca=/x", "topics+tls://k,y@[::1]:2?ca=/x", "topics+tls://k,y@c:4001,a:1?ca=/x"],
    ],
)
def test_an_address_of_several_nodes(given: str | list[str]) -> None:
    found = Address.parse(given)
    assert found == Address("a", 1, "k,y", tls=True, ca_file="/x", others=(("::1", 2), ("c", 4001)))
    assert [node.target for node in found.nodes] == ["a:1", "[::1]:2", "c:4001"]
    assert all(node.key == "k,y" and node.ca_file == "/x" and not node.others for node in found.nodes)
    assert str(found) == "topics+tls://a:1,[::1]:2,c:4001?ca=/x"
    assert Address.parse(str(found), key="k,y") == found


def test_the_environment_may_name_several_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_URL", "a, b:2")
    assert Address.parse().others == (("b", 2),)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("topics://s3cret@a,", "topics://KEY@HOST:PORT"),
        ("topics://s3cret@,a", "topics://KEY@HOST:PORT"),
        ("topics://s3cret@a,b:x", "0-65535"),
        (["topics://s3cret@a", "topics://other@b"], "the same scheme, key"),
        (["topics://s3cret@a", "topics+tls://s3cret@b"], "the same scheme, key"),
        ("topics://s3cret@" + ",".join(f"h{n}" for n in range(33)), "at most 32"),
    ],
)
def test_what_is_no_address_of_several_nodes(given: str | list[str], why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        Address.parse(given)
    assert "s3cret" not in str(caught.value)
