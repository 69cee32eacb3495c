"""Benchmarks against peers in the same run: `make bench` prints the table and writes docs/benchmarks.md."""
