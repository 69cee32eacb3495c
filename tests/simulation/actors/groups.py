"""Consumer groups that commit, go back, and are forgotten."""

from simulation.actors.base import LOGS, Actor

GROUPS = ("g", "h", "other")


class Committer(Actor):
    """Commits positions, mostly near the head."""

    weight = 6

    def act(self) -> None:
        """See Actor."""
        group, topic = self.pick(*GROUPS), self.topic(*LOGS, "p")
        if topic is None:
            return
        groups, partition = self.world.groups, self.partition(topic)
        head = topic.logs[partition].view.head
        if self.chance(0.85):
            seq = max(0, head - self.pick(0, 0, 1, 3, 9, -5))
            self.tell(f"{group} commits {seq} of {topic.name}/{partition}")
            groups.commit(group, topic, partition, seq)
        elif self.chance(0.7):
            end = self.pick("earliest", "latest", "0", "5")
            to = int(end) if end.isdigit() else end
            self.tell(f"resets {group} in {topic.name} to {to}")
            groups.reset(group, topic, to)
        elif self.chance(0.7):
            self.tell(f"forgets {group} in {topic.name}")
            groups.forget(group, topic)
        else:
            self.tell(f"deletes {group}")
            groups.delete(group)
