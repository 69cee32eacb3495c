"""Listing only some names: `names.narrow` and the pages made with it, against a filter over all names."""

from hypothesis import given
from hypothesis import strategies as st

from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.model import ConfigInput, ListTopicsRequest
from topics_service.engine.names import narrow
from topics_service.storage.memory import MemoryStore

PREFIXES = st.text("ab:", max_size=3)
ALLOWED = st.lists(st.text("ab:", min_size=1, max_size=3), max_size=5).map(tuple)
NAMES = st.text("ab:", min_size=1, max_size=4).filter(lambda name: name[0] != ":")


@given(PREFIXES, ALLOWED, st.lists(NAMES))
def test_narrow_is_a_disjoint_cover_in_order(prefix: str, allowed: tuple[str, ...], names: list[str]) -> None:
    narrowed = narrow(prefix, allowed)
    assert narrowed == sorted(narrowed)
    for name in names:
        wanted = name.startswith(prefix) and name.startswith(allowed)
        assert [name.startswith(part) for part in narrowed].count(True) == wanted
    assert narrow(prefix, None) == [prefix]
    assert narrow(prefix, ()) == []


@given(PREFIXES, st.none() | ALLOWED, st.sets(NAMES, max_size=30), st.integers(1, 5), st.none() | NAMES)
def test_pages_are_full_and_complete(
    prefix: str, allowed: tuple[str, ...] | None, names: set[str], page_size: int, after: str | None
) -> None:
    engine = Engine(MemoryStore(), SystemClock())
    for name in names:
        engine.put_topic(name, ConfigInput())
    engine.sync()
    expected = sorted(
        name
        for name in names
        if name.startswith(prefix) and (allowed is None or name.startswith(allowed)) and (after is None or name > after)
    )
    pages = []
    while True:
        request = ListTopicsRequest(prefix=prefix, after=after, page_size=page_size)
        reply = engine.list_topics(request, allowed)
        pages.append([state.topic for state in reply.topics])
        after = reply.next_after
        if after is None:
            break
    assert [name for page in pages for name in page] == expected
    assert all(len(page) == page_size for page in pages[:-1])
    assert bool(pages[-1]) == bool(expected)
