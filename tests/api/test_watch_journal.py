"""Tokens of large sessions: each gives exact cursors, in bounded memory, for the session's own key."""

import random

from support.fake_time import in_fake_time
from support.watching import Watching, quiet
from topics_service.api.access.auth import UNRESTRICTED, Principal
from topics_service.api.watch_journal import Journal, Journals, is_token


def walk(rng: random.Random, place: dict[str, int]) -> None:
    """Topics move on, come and go."""
    for _ in range(rng.choice((0, 1, 1, 1, 3))):
        name = f"t{rng.randrange(100)}"
        if rng.random() < 0.1:
            place.pop(name, None)
        else:
            place[name] = rng.choice((0, 1, (1 << 64) - 1, rng.randrange(1 << 40)))


def test_each_mark_stands_for_the_place_that_was_noted() -> None:
    rng = random.Random(3)
    place = {f"t{i}": i for i in range(80)}
    journal = Journal("wid_1", place)
    noted: dict[int, dict[str, int]] = {}
    for step in range(3000):
        walk(rng, place)
        mark = journal.note(place)
        assert noted.setdefault(mark, place.copy()) == place
        if step in (500, 501, 1700):
            journal.trim()
    kept = [mark for mark in noted if journal.at(mark) is not None]
    assert kept == list(range(min(kept), max(noted) + 1)), "the newest"
    assert all(journal.at(mark) == noted[mark] for mark in kept)
    assert journal.at(max(noted) + 1) is journal.at(min(kept) - 1) is None
    assert len(kept) > 1000


def test_all_journals_together_are_bounded() -> None:
    maximum = 1 << 20
    journals, place = Journals(maximum), {f"topic-{i}": 0 for i in range(100)}
    kept: dict[str, dict[str, int]] = {}
    mine = None
    for i in range(60_000):
        place[f"topic-{i % 100}"] = i
        mine, token = journals.note("wid_mine", mine, place)
        assert is_token(token)
        kept[token] = place.copy() if i > 59_000 else {}
        if i % 200 == 0:
            journals.note(f"wid_{i}", None, place)
        assert journals.weight <= maximum
    last = list(kept)[-200:]
    assert [journals.recall(token) for token in last] == [("wid_mine", kept[token]) for token in last]
    assert journals.recall(next(iter(kept))) is None
    journals.forget("wid_mine")
    assert journals.recall(last[-1]) is None
    for bad in ("", "place_", last[-1] + "0", last[-1][:-1] + "x", "x" + last[-1], last[-1] + "9" * 30):
        assert journals.recall(bad) is None


@in_fake_time
async def test_a_token_is_known_to_the_key_of_its_session_while_that_lives() -> None:
    world = Watching()
    world.put("a")
    world.append("a", 3)
    owner = Principal(key_id="one", scopes=UNRESTRICTED.scopes, prefixes=UNRESTRICTED.prefixes)
    other = Principal(key_id="two", scopes=UNRESTRICTED.scopes, prefixes=UNRESTRICTED.prefixes)
    wid = await world.session("a", principal=owner)
    with await world.api.open(wid, {}, principal=owner) as stream:
        await quiet(stream)
        token = stream.resume_token()
        assert await world.api.recall(token, principal=owner) == {"a": 3}
        assert await world.api.recall(token, principal=other) is None
        assert await world.api.recall(token, principal=None) is None
    assert await world.api.recall(token, principal=owner) == {"a": 3}
    world.api.remove_sessions("one")
    assert await world.api.recall(token, principal=owner) is None
