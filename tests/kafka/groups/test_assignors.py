"""The assignors of `consumer` groups as functions: complete, even, and with few moves."""

from hypothesis import given
from hypothesis import strategies as st

from topics_service.engine.membership.assignors import ASSIGNORS, Assignment, Subscriber, range_, uniform
from topics_service.engine.membership.members import TopicFacts

NAMES = ["t", "u", "v", "w"]


def topics(**counts: int) -> dict[str, TopicFacts]:
    return {name: TopicFacts(name.encode() * 16, count) for name, count in counts.items()}


def members(**names: str) -> dict[str, Subscriber]:
    return {member_id: Subscriber(frozenset(each), (True, member_id)) for member_id, each in names.items()}


@st.composite
def situations(draw: st.DrawFn) -> tuple[dict[str, Subscriber], dict[str, TopicFacts], Assignment]:
    """Members, topics, and a previous assignment, also of former members and deleted topics."""
    counts = draw(st.dictionaries(st.sampled_from(NAMES), st.integers(1, 9)))
    wishes = draw(st.dictionaries(st.sampled_from("abcdefgh"), st.sets(st.sampled_from(NAMES))))
    if draw(st.booleans()) and wishes:
        same = next(iter(wishes.values()))
        wishes = dict.fromkeys(wishes, same)
    parts = draw(st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 10)), unique=True))
    before: Assignment = {}
    for name, partition in parts:
        owner = draw(st.sampled_from("abcdefghij"))
        before.setdefault(owner, set()).add((name.encode() * 16, partition))
    return members(**{m: "".join(names) for m, names in wishes.items()}), topics(**counts), before


@given(situations())
def test_every_partition_has_one_owner_that_subscribes_to_it(
    situation: tuple[dict[str, Subscriber], dict[str, TopicFacts], Assignment],
) -> None:
    subscribers, facts, before = situation
    for assignor in ASSIGNORS.values():
        found = assignor(subscribers, facts, before)
        assert found.keys() == subscribers.keys()
        allowed = {
            member_id: {
                (facts[name].topic_id, p)
                for name in each.topics & facts.keys()
                for p in range(facts[name].partition_count)
            }
            for member_id, each in subscribers.items()
        }
        assert all(found[member_id] <= allowed[member_id] for member_id in found)
        assert sum(map(len, found.values())) == len(set().union(*allowed.values()))
        assert set().union(*found.values()) == set().union(*allowed.values())


@given(situations())
def test_uniform_is_even_and_settled(
    situation: tuple[dict[str, Subscriber], dict[str, TopicFacts], Assignment],
) -> None:
    subscribers, facts, before = situation
    found = uniform(subscribers, facts, before)
    for giver, parts in found.items():
        for topic_id, _ in parts:
            name = next(name for name in facts if facts[name].topic_id == topic_id)
            takers = [len(found[m]) for m, each in subscribers.items() if name in each.topics]
            assert len(found[giver]) - min(takers) <= 1
    assert uniform(subscribers, facts, found) == found


@given(situations())
def test_uniform_moves_no_more_than_it_must(
    situation: tuple[dict[str, Subscriber], dict[str, TopicFacts], Assignment],
) -> None:
    subscribers, facts, before = situation
    if len({each.topics for each in subscribers.values()}) != 1:
        return
    wanted = {
        (facts[name].topic_id, p)
        for name in next(iter(subscribers.values())).topics & facts.keys()
        for p in range(facts[name].partition_count)
    }
    each, extra = divmod(len(wanted), len(subscribers))
    held = sorted((len(before.get(m, set()) & wanted) for m in subscribers), reverse=True)
    most = sum(min(count, each + (i < extra)) for i, count in enumerate(held))
    found = uniform(subscribers, facts, before)
    assert sum(len(found[m] & before.get(m, set())) for m in subscribers) == most


def test_ranges_of_topics_that_are_alike_are_the_same() -> None:
    found = range_(members(b="tu", a="tu", c="t"), topics(t=7, u=4), {})
    t, u = b"t" * 16, b"u" * 16
    assert found == {
        "a": {(t, 0), (t, 1), (t, 2), (u, 0), (u, 1)},
        "b": {(t, 3), (t, 4), (u, 2), (u, 3)},
        "c": {(t, 5), (t, 6)},
    }


def test_ranges_put_static_members_first() -> None:
    subscribers = {
        "a": Subscriber(frozenset("t"), (True, "a")),
        "z": Subscriber(frozenset("t"), (False, "i")),
    }
    found = range_(subscribers, topics(t=2), {})
    assert found["z"] == {(b"t" * 16, 0)}


def test_many_members_with_mixed_subscriptions() -> None:
    """Ten thousand partitions are assigned to a thousand members in a moment."""
    facts = {f"t{i}": TopicFacts(i.to_bytes(16, "big"), 100) for i in range(100)}
    names = list(facts)
    subscribers = {f"m{i}": Subscriber(frozenset(names[i % 7 :]), (True, f"m{i}")) for i in range(1_000)}
    found = uniform(subscribers, facts, {})
    assert max(map(len, found.values())) - min(map(len, found.values())) <= 1
