"""Whatever clients and crashes do to an engine, an audit of its rows is clean: `topics verify` gives no false alarm."""

import os
import time
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import pytest
from engine_machine import EngineMachine
from engine_support import run_machine
from hypothesis.stateful import RuleBasedStateMachine, invariant
from test_batches_machine import BatchMachine, BatchTopic
from test_groups_machine import GroupsMachine
from test_queue_machine import QueueMachine
from test_router_machine import RouterMachine

from support.audit import audit

_SMALL: dict[str, Any] = {
    "topics_service.engine.maintenance.SEAL_BLOCKS": 3,
    "topics_service.engine.maintenance._SMALL_RECORDS": 5,
    "topics_service.engine.maintenance._FULL_RECORDS": 9,
    "topics_service.engine.maintenance._RECLAIM_SEQS": 2,
    "topics_service.engine.reader.NEAR": 3,
    "topics_service.engine.reader.WORK": 400,
    "topics_service.engine.log.CEILING_STEP": 8,
    "topics_service.engine.queue.schedule.FOLD_ROWS": 3,
    "topics_service.engine.queue.alarms._SLACK": 4,
    "topics_service.engine.router.copies.RECORDS": 3,
}


def audited(machine: type[RuleBasedStateMachine]) -> type[RuleBasedStateMachine]:
    """The machine, which also audits its store after each step."""

    class Audited(machine):
        @invariant()
        def an_audit_is_clean(self) -> None:
            assert audit(self.world.store) == []

    return Audited


def run(machine: type[RuleBasedStateMachine], examples: int, steps: int, *, derandomize: bool) -> None:
    with ExitStack() as stack:
        changes = _SMALL | ({"engine_machine.Topic": BatchTopic} if machine is BatchMachine else {})
        for name, value in changes.items():
            stack.enter_context(patch(name, value))
        run_machine(audited(machine), examples, steps, derandomize=derandomize)


MACHINES = [EngineMachine, BatchMachine, QueueMachine, RouterMachine, GroupsMachine]


@pytest.mark.parametrize("machine", MACHINES)
def test_an_audit_is_clean_after_each_step(machine: type[RuleBasedStateMachine]) -> None:
    run(machine, 15, 40, derandomize=True)


@pytest.mark.soak
@pytest.mark.skipif("TOPICS_SOAK_SECONDS" not in os.environ, reason="a soak: set TOPICS_SOAK_SECONDS")
@pytest.mark.timeout(0)
@pytest.mark.parametrize("machine", MACHINES)
def test_an_audit_is_clean_for_long(machine: type[RuleBasedStateMachine]) -> None:
    end = time.monotonic() + float(os.environ["TOPICS_SOAK_SECONDS"])
    while time.monotonic() < end:
        run(machine, 30, 60, derandomize=False)
