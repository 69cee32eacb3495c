"""Backups of a data directory: to a folder or an object store, incremental, verified, and back."""
