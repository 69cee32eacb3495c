"""Effective priority: which of the topics that are due is served first (docs/contract.md, 3.7).

It decides only the order, never the content.
"""

from topics_service.engine.topic import Topic

AGE_RATE = 100
"""Points for each second that a topic has waited."""
AGE_CAP_MS = 10_000
"""Longer waits do not count."""


def effective(topic: Topic, now: int, due_ts: int) -> int:
    """The priority of a topic that is due since `due_ts` (ms): manual or recency, and a boost for its age.

    Higher goes first. A clock that stepped back counts as no wait.
    """
    return topic.effective_priority(now) + age_boost(now - due_ts)


def age_boost(waited_ms: int) -> int:
    """Return the boost for a wait: 0 to 1000."""
    return AGE_RATE * max(0, min(waited_ms, AGE_CAP_MS)) // 1000
