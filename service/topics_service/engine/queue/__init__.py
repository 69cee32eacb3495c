"""Leases over the records of a topic: jobs, workers, dead letters (docs/contract.md, 10)."""
