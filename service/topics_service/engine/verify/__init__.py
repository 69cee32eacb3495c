"""Consistency checks over the rows of a store. They change nothing and continue after an error."""

from topics_service.engine.verify.checks import Audit
from topics_service.engine.verify.findings import Problem

__all__ = ["Audit", "Problem"]
