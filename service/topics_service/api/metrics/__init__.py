"""Metrics of the server: their collection, and their text formats."""
