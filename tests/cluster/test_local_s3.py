"""The S3 server in memory behaves as a store, and badly where it is asked to."""

from collections.abc import Callable

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, GenericError
from obstore.store import S3Store, from_url

from support.local_s3 import Fault, LocalS3


def opened(server: LocalS3, *, retries: int = 0) -> S3Store:
    store = from_url(
        "s3://bucket/prefix",
        endpoint=server.endpoint,
        access_key_id="anyone",
        secret_access_key="anything",
        region="us-east-1",
        client_options={"allow_http": True},
        retry_config={"max_retries": retries},
    )
    assert isinstance(store, S3Store)
    return store


def of_objects(fault: Fault, name: str) -> Callable[[str, str], Fault | None]:
    """The fault for one object, once."""
    left = [fault]
    return lambda method, key: left.pop() if left and key.endswith(name) else None


def test_an_object_is_created_once_and_read_whole_or_in_part() -> None:
    with LocalS3() as server:
        store = opened(server)
        obstore.put(store, "a/1", b"hello", mode="create")
        with pytest.raises(AlreadyExistsError):
            obstore.put(store, "a/1", b"other", mode="create")
        assert bytes(obstore.get(store, "a/1").bytes()) == b"hello"
        assert bytes(obstore.get_range(store, "a/1", start=1, length=3)) == b"ell"
        with pytest.raises(FileNotFoundError):
            obstore.get(store, "a/2")
        obstore.delete(store, ["a/1", "a/2"])
        assert server.objects == {}


def test_a_store_without_conditions_creates_over_what_is_there() -> None:
    with LocalS3(conditional=False) as server:
        store = opened(server)
        obstore.put(store, "a", b"1", mode="create")
        obstore.put(store, "a", b"2", mode="create")
        assert server.objects["bucket/prefix/a"].body == b"2"


def test_listings_have_pages_and_a_beginning() -> None:
    with LocalS3() as server:
        for number in range(2100):
            assert server.put(f"bucket/prefix/a/{number:04}", b"x", create=True)
        server.put("bucket/prefix/b", b"x", create=True)
        store = opened(server)
        assert sum(map(len, obstore.list(store, prefix="a"))) == 2100
        last = [entry["path"] for page in obstore.list(store, prefix="a", offset="a/2097") for entry in page]
        assert last == ["a/2098", "a/2099"]


def test_a_large_file_comes_in_parts() -> None:
    with LocalS3() as server:
        body = bytes(range(256)) * 50_000
        obstore.put(opened(server), "large", body)
        assert server.objects["bucket/prefix/large"].body == body


@pytest.mark.parametrize(("fault", "there"), [("500", False), ("503", False), ("lost", True)])
def test_a_put_fails_before_or_after_it_is_done(fault: Fault, *, there: bool) -> None:
    with LocalS3(fault=of_objects(fault, "/a")) as server:
        with pytest.raises(GenericError):
            obstore.put(opened(server), "a", b"1", mode="create")
        assert ("bucket/prefix/a" in server.objects) is there


def test_half_a_body_is_an_error() -> None:
    with LocalS3() as server:
        store = opened(server)
        obstore.put(store, "a", b"12345678")
        server.fault = of_objects("half", "/a")
        with pytest.raises(GenericError):
            obstore.get(store, "a").bytes()
