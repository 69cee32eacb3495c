"""Groups whose members join, leave and are killed: no partition has two owners, no record is lost, order is kept.

Members of different clients are in one group: they agree on the names and formats of their assignors.
"""

import os
import random
import time
from pathlib import Path

import pytest

from support.kafka_group import Churn
from support.kafka_kinds import KINDS

CREWS = {
    "range": ("confluent-kafka", "java", "franz-go", "kafka-python"),
    "cooperative": ("confluent-kafka", "java", "franz-go", "java"),
    "consumer": ("confluent-kafka", "java", "franz-go", "confluent-kafka"),
}
SOAK_SECONDS = float(os.environ.get("TOPICS_SOAK_SECONDS", "0"))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("protocol", CREWS)
def test_joins_leaves_and_kills(bootstrap: str, topic: str, tmp_path: Path, protocol: str) -> None:
    first, second, third, fourth = CREWS[protocol]
    with Churn(bootstrap, tmp_path, topic, protocol) as churn:
        churn.produce(count=3000, pause_ms=50)
        churn.join("a", first)
        churn.join("b", second)
        churn.settled()
        churn.join("c", third)
        churn.settled()
        churn.leave("a")
        churn.settled()
        churn.join("d", fourth)
        churn.settled()
        churn.kill("b")
        churn.settled(75)  # a member of the new protocol expires after 45 s
        outcome = churn.finish()
    assert outcome.again <= 600  # the records that "b" was processing: at most one poll of each partition


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "protocol"),
    [(n, p) for n in ("confluent-kafka", "java", "franz-go", "kafka-python", "aiokafka") for p in KINDS[n].protocols],
)
def test_long_churn(bootstrap: str, topic: str, tmp_path: Path, name: str, protocol: str) -> None:
    rng = random.Random(topic)
    budget = SOAK_SECONDS / 12
    until = time.monotonic() + budget
    with Churn(bootstrap, tmp_path, topic, protocol, partitions=8) as churn:
        churn.produce(count=1000 + int(budget * 200), pause_ms=100)
        members: list[str] = []
        number = 0
        while time.monotonic() < until or not members:
            if len(members) < 2 or (len(members) < 5 and rng.random() < 0.5):
                number += 1
                churn.join(f"m{number}", name)
                members.append(f"m{number}")
            else:
                gone = members.pop(rng.randrange(len(members)))
                (churn.kill if rng.random() < 0.4 else churn.leave)(gone)
            if rng.random() < 0.6:
                churn.settled(60)
        churn.finish(120)
