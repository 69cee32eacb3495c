"""Helpers shared by the tests that run against a real server process."""
