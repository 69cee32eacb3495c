"""Whether the rows of a store agree with each other: checks that change nothing and go on past what is wrong."""

from topics_service.engine.verify.checks import Audit
from topics_service.engine.verify.findings import Problem

__all__ = ["Audit", "Problem"]
