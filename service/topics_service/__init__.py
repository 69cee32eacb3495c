"""The topics engine: storage, engine, API and gRPC service."""

__version__ = "0.1.0"
