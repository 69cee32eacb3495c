"""Leases over the records of a topic: jobs, workers, dead letters (SPEC API 10)."""
