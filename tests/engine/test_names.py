"""Topic names, slugs and resource locators."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topics_service.engine.errors import TopicsError
from topics_service.engine.names import ResourcePrefix, check_topic_name, is_topic_name, rrl, slug


@pytest.mark.parametrize("name", ["a", "Z", "0", "a" * 255, "render-queue:tenant.A_1", "a:", "0-", "A.B"])
def test_names(name: str) -> None:
    assert is_topic_name(name)
    check_topic_name(name)


@pytest.mark.parametrize(
    "name", ["", "a" * 256, "-a", ".a", ":a", "_a", "a/b", "a b", "a\n", "\na", "é", "aé", "a\x00", "$a", "١", "a>b"]
)
def test_what_is_not_a_name(name: str) -> None:
    assert not is_topic_name(name)
    with pytest.raises(TopicsError):
        check_topic_name(name)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("orders", "orders"),
        ("Orders.EU:v1", "orders-eu-v1"),
        ("a__--..b", "a-b"),
        ("a-", "a"),
        ("A" * 80, "a" * 63),
        ("a" * 62 + "--b", "a" * 62),
    ],
)
def test_slugs(name: str, label: str) -> None:
    assert slug(name) == label
    assert rrl(ResourcePrefix(), name) == f"topics/dev/local/topics/{label}"
    assert rrl(ResourcePrefix(org="o", env="e", cluster="c"), name) == f"o/e/c/topics/{label}"


@settings(deadline=None, derandomize=True)
@given(name=st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._:-]{0,254}\Z"))
def test_a_slug_is_a_dns_label_and_stays_itself(name: str) -> None:
    label = slug(name)
    assert 1 <= len(label) <= 63
    assert set(label) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert not label.startswith("-")
    assert not label.endswith("-")
    assert slug(label) == label
