"""Producers: append many records in the background."""
