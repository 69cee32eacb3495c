"""Scheduling of work on the event loop: batching, fair order, group commit and backpressure."""
