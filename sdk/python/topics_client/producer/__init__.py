"""Producers: what appends many records in the background."""
