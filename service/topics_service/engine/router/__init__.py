"""Forwarding from topic to topic (SPEC API 6)."""
