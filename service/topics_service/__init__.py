"""The topics server: engine, storage, gRPC service and composition root."""

__version__ = "0.1.0"
