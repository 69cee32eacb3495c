"""A group under churn: members in separate processes, with journals, during continuous writes."""

import contextlib
import time
from pathlib import Path
from typing import Self

from support.kafka_clients import Client
from support.kafka_journal import Journal, Outcome, judge
from support.kafka_kinds import usable
from support.waiting import poll


class Churn:
    """One topic, one group. Leaving the block ends every process that is left."""

    def __init__(self, bootstrap: str, directory: Path, topic: str, protocol: str, partitions: int = 6) -> None:
        self.topic = topic
        self.group = f"g-{topic}"
        self.partitions = partitions
        self.journals: list[Journal] = []
        self._bootstrap = bootstrap
        self._directory = directory
        self._protocol = protocol
        self._stack = contextlib.ExitStack()
        self._members: dict[str, tuple[Client, Journal]] = {}
        self._admin = self._client("confluent-kafka", "-admin")
        self._producer = self._client("confluent-kafka", "-producer")
        self.count = 0
        self._seconds = 0

    def _client(self, name: str, mark: str) -> Client:
        client = usable(name).start({"bootstrap": self._bootstrap}, self._directory, mark)
        return self._stack.enter_context(client)

    def produce(self, count: int, pause_ms: int) -> None:
        """Create the topic and write the given number of records in the background, with a pause after every 20."""
        self._admin.call("create_topic", topic=self.topic, partitions=self.partitions)
        self.count = count
        self._seconds = 60 + count * pause_ms // 20_000
        facts = {"partitions": self.partitions, "count": count, "pause_ms": pause_ms, "seconds": self._seconds}
        self._producer.send("produce_many", topic=self.topic, acks=-1, idempotent=True, **facts)

    def join(self, member: str, name: str, *, session_ms: int = 6000) -> None:
        """A member of that client, in a process of its own."""
        client = self._client(name, f"-{member}")
        journal = Journal(self._directory / member)
        facts = {"group": self.group, "topic": self.topic, "protocol": self._protocol, "session_ms": session_ms}
        client.call("member_start", member=member, journal=str(journal.path), **facts)
        self.journals.append(journal)
        self._members[member] = client, journal

    def leave(self, member: str) -> None:
        """The member leaves in good order."""
        client, _ = self._members.pop(member)
        client.call("member_stop", member=member)

    def kill(self, member: str) -> None:
        """SIGKILL the member's process."""
        client, journal = self._members.pop(member)
        client.kill()
        journal.killed_at = time.time()

    def settled(self, seconds: float = 30.0) -> None:
        """Wait until every member that is here owns something and nothing is left over."""

        def shared() -> bool:
            owned = [journal.owned() for _, journal in self._members.values()]
            return all(owned) and set().union(*owned) == set(range(self.partitions))

        poll(shared, seconds, f"every member owns a share; {self._log()}")

    def finish(self, seconds: float = 45.0) -> Outcome:
        """Wait until every record was processed, let the members leave, and judge; nothing may be lost or misplaced."""
        placed = self._producer.receive(self._seconds + 30)
        assert len(placed) == self.count

        def processed() -> bool:
            found = judge(self.journals)
            return bool(found.errors) or sum(map(len, found.processed.values())) >= self.count

        poll(processed, seconds, f"every record processed; {self._log()}")
        for member in list(self._members):
            self.leave(member)
            if self._members:
                self.settled()  # a member that leaves during a rebalance can't commit its last records
        outcome = judge(self.journals)
        assert not outcome.errors, "\n".join(outcome.errors[:10])
        each = {p: len(range(p, self.count, self.partitions)) for p in range(self.partitions)}
        assert {p: len(offsets) for p, offsets in outcome.processed.items()} == each
        assert self._admin.committed(self.topic, self.group) == each
        return outcome

    def _log(self) -> str:
        failures = {journal.member: journal.failure() for journal in self.journals if journal.failure()}
        return f"owned: {[(journal.member, journal.owned()) for journal in self.journals]}, failures: {failures}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
