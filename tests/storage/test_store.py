"""What every store promises, for each implementation."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topics_service.storage.memory import MemoryStore
from topics_service.storage.rocks import RocksStore
from topics_service.storage.store import Family, Store

B = Family.BLOCKS


@pytest.fixture(params=["memory", "rocks"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened: Store = MemoryStore() if request.param == "memory" else RocksStore(tmp_path / "db")
    yield opened
    opened.close()


def put(store: Store, rows: dict[bytes, bytes], family: Family = B) -> None:
    batch = store.batch()
    for key, value in rows.items():
        batch.put(family, key, value)
    store.write(batch)


def test_get_gives_the_newest_value_or_none(store: Store) -> None:
    assert store.get(B, b"k") is None
    put(store, {b"k": b"1"})
    put(store, {b"k": b""})
    assert store.get(B, b"k") == b""


def test_families_are_apart(store: Store) -> None:
    for family in Family:
        put(store, {b"k": family.name.encode()}, family)
    assert [store.get(family, b"k") for family in Family] == [family.name.encode() for family in Family]


def test_scans_are_in_byte_order_within_half_open_bounds(store: Store) -> None:
    keys = [b"", b"\x00", b"\x00\xff", b"a", b"a\x00", b"b", b"\xff", b"\xff\xff"]
    put(store, dict.fromkeys(reversed(keys), b"v"))
    assert [key for key, _ in store.scan(B, b"", b"\xff\xff\xff")] == keys
    assert [key for key, _ in store.scan(B, b"a", b"b")] == [b"a", b"a\x00"]
    assert [key for key, _ in store.scan(B, b"a\x01", b"b\x00")] == [b"b"]
    assert list(store.scan(B, b"c", b"c")) == []
    assert list(store.scan(B, b"z", b"c")) == []
    assert list(store.scan(Family.TAGS, b"", b"\xff")) == []


def test_a_scan_shows_the_rows_as_they_stood_when_it_began(store: Store) -> None:
    put(store, {b"a": b"1", b"b": b"1", b"c": b"1"})
    rows = store.scan(B, b"a", b"z")
    first = next(rows)
    batch = store.batch()
    batch.delete(B, b"b")
    batch.put(B, b"c", b"2")
    batch.put(B, b"d", b"2")
    store.write(batch)
    assert [first, *rows] == [(b"a", b"1"), (b"b", b"1"), (b"c", b"1")]


def test_a_scan_back_is_the_scan_from_its_end(store: Store) -> None:
    keys = [b"", b"\x00", b"\x00\xff", b"a", b"a\x00", b"b", b"\xff", b"\xff\xff"]
    put(store, dict.fromkeys(keys, b"v"))
    put(store, {b"%05d" % n: b"" for n in range(1000)}, Family.ROWS)
    for start, stop in ((b"", b"\xff" * 3), (b"a", b"b"), (b"a\x01", b"b\x00"), (b"c", b"c"), (b"z", b"c")):
        assert list(store.scan_back(B, start, stop)) == list(store.scan(B, start, stop))[::-1]
    assert list(store.scan_back(Family.ROWS, b"00100", b"00900")) == [(b"%05d" % n, b"") for n in range(899, 99, -1)]
    rows = store.scan_back(B, b"a", b"c")
    first = next(rows)
    put(store, {b"a": b"2", b"aa": b"2"})
    assert [first, *rows] == [(b"b", b"v"), (b"a\x00", b"v"), (b"a", b"v")]


@pytest.mark.parametrize("family", [Family.ROWS, Family.INDEXES])
def test_a_snapshot_stays_as_it_is(store: Store, family: Family) -> None:
    put(store, {b"%03d" % n: b"1" for n in range(300)}, family)
    snapshot = store.snapshot()
    scans = [
        snapshot.scan(family, b"", b"\xff"), snapshot.scan_back(family, b"", b"\xff"),
        snapshot.scan(family, b"100", b"105"), snapshot.scan_back(family, b"100", b"105"),
    ]  # fmt: skip
    found = [[next(scan)] for scan in scans]
    batch = store.batch()
    batch.apply(family, {b"%03d" % n: None if n % 3 else b"2" for n in range(0, 300, 2)})
    batch.apply(family, {b"new": b"2"})
    batch.delete_range(family, b"200", b"250")
    store.write(batch)
    put(store, {b"100": b"3", b"new": b"3"}, family)
    whole = [(b"%03d" % n, b"1") for n in range(300)]
    assert [rows + list(scan) for rows, scan in zip(found, scans, strict=True)] == [
        whole, whole[::-1], whole[100:105], whole[104:99:-1],
    ]  # fmt: skip
    assert (snapshot.get(family, b"100"), snapshot.get(family, b"220")) == (b"1", b"1")
    assert snapshot.get(family, b"new") is None
    assert store.get(family, b"100") == b"3"
    assert store.get(family, b"102") == b"2"


def test_floor_is_the_greatest_key_up_to_the_given_one(store: Store) -> None:
    assert store.floor(B, b"z") is None
    put(store, {b"b": b"1", b"d": b"2", b"f": b"3"})
    assert store.floor(B, b"a") is None
    assert store.floor(B, b"b") == (b"b", b"1")
    assert store.floor(B, b"c") == (b"b", b"1")
    assert store.floor(B, b"d\x00") == (b"d", b"2")
    assert store.floor(B, b"\xff" * 9) == (b"f", b"3")
    batch = store.batch()
    batch.delete_range(B, b"c", b"e")
    store.write(batch)
    assert store.floor(B, b"e") == (b"b", b"1")


def test_delete_range_spares_its_stop_and_other_families(store: Store) -> None:
    put(store, dict.fromkeys((b"a", b"b", b"c", b"d"), b"v"))
    put(store, {b"b": b"v"}, Family.TAGS)
    batch = store.batch()
    batch.delete_range(B, b"b", b"d")
    store.write(batch)
    assert [key for key, _ in store.scan(B, b"", b"\xff")] == [b"a", b"d"]
    assert store.get(Family.TAGS, b"b") == b"v"


def test_the_changes_of_a_batch_take_effect_in_order(store: Store) -> None:
    put(store, {b"a": b"old"})
    batch = store.batch()
    assert batch.is_empty()
    batch.put(B, b"x", b"1")
    assert not batch.is_empty()
    batch.delete_range(B, b"a", b"z")
    batch.put(B, b"a", b"new")
    batch.put(B, b"b", b"1")
    batch.delete(B, b"b")
    batch.delete(B, b"absent")
    assert store.get(B, b"a") == b"old", "nothing happens before the write"
    store.write(batch)
    assert list(store.scan(B, b"", b"\xff")) == [(b"a", b"new")]


def test_a_batch_knows_about_how_big_it_is(store: Store) -> None:
    batch = store.batch()
    batch.put(B, b"k" * 10, b"v" * 1000)
    assert 1010 <= batch.nbytes < 1200


def test_sync_and_an_empty_batch_are_fine(store: Store) -> None:
    store.write(store.batch())
    store.sync()


few_keys = st.binary(max_size=3)
changes = st.lists(
    st.one_of(
        st.tuples(st.just("put"), few_keys, st.binary(max_size=4)),
        st.tuples(st.just("delete"), few_keys, st.just(b"")),
        st.tuples(st.just("delete_range"), few_keys, few_keys),
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=st.lists(changes, max_size=4), probes=st.lists(few_keys, min_size=2, max_size=2))
def test_both_stores_agree_with_a_dictionary(
    store: Store, batches: list[list[tuple[str, bytes, bytes]]], probes: list[bytes]
) -> None:
    clear = store.batch()
    clear.delete_range(B, b"", b"\xff" * 9)
    store.write(clear)
    rows: dict[bytes, bytes] = {}
    for batch_changes in batches:
        batch = store.batch()
        for change, key, value in batch_changes:
            if change == "put":
                batch.put(B, key, value)
                rows[key] = value
            elif change == "delete":
                batch.delete(B, key)
                rows.pop(key, None)
            elif key <= value:
                batch.delete_range(B, key, value)
                rows = {k: v for k, v in rows.items() if not key <= k < value}
        store.write(batch)
    start, stop = probes
    assert list(store.scan(B, start, stop)) == sorted((k, v) for k, v in rows.items() if start <= k < stop)
    assert store.floor(B, start) == max(((k, v) for k, v in rows.items() if k <= start), default=None)
    assert store.get(B, stop) == rows.get(stop)
