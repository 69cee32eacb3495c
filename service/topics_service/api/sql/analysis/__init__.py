"""Analytical queries: DuckDB over Arrow of the tables."""
