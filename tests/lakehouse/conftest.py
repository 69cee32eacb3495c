"""A session for all tests, a server for each module, records and the truth."""

from support.spark_fixtures import connection, fill, pytest_collection_modifyitems, rows, server, spark

__all__ = ["connection", "fill", "pytest_collection_modifyitems", "rows", "server", "spark"]
