"""What both doors are asked, as data: cases of steps, one module for each kind of call."""

from doors.cases.delete import DELETES
from doors.cases.diff import READS
from doors.cases.limits import LIMITED
from doors.cases.partitions import PARTITIONS
from doors.cases.steps import Case, Step
from doors.cases.topics import CONFIGS, TOPICS
from doors.cases.write import WRITES

__all__ = ["CASES", "Case", "Step"]

CASES = [*CONFIGS, *TOPICS, *WRITES, *READS, *DELETES, *PARTITIONS, *LIMITED]
