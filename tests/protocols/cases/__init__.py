"""Requests to both protocols as data: cases of steps, one module for each kind of call."""

from protocols.cases.delete import DELETES
from protocols.cases.diff import READS
from protocols.cases.limits import LIMITED
from protocols.cases.partitions import PARTITIONS
from protocols.cases.steps import Case, Step
from protocols.cases.topics import CONFIGS, TOPICS
from protocols.cases.write import WRITES

__all__ = ["CASES", "Case", "Step"]

CASES = [*CONFIGS, *TOPICS, *WRITES, *READS, *DELETES, *PARTITIONS, *LIMITED]
