"""Forwarding from topic to topic (docs/contract.md, 7)."""
