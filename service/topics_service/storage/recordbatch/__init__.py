"""Everything that knows the bytes of Kafka's record batches (message format v2), as functions on bytes.

A producer's batch is checked (`check`) and stored unchanged; it is patched (`patched`, `stamped`) or rebuilt without
deleted records (`rebuilt`) when it is fetched. The other protocols read it as columns (`columns`, `times`), and their
records become a batch for Kafka clients (`encoded`). `control` fills a hole at the end of a log.
"""

from topics_service.storage.recordbatch.columnar import Columns, columns, encoded
from topics_service.storage.recordbatch.header import Header, InvalidBatchError, control, headers, patched, stamped
from topics_service.storage.recordbatch.records import MAX_INFLATED, MAX_RECORDS, check, inflated_size, rebuilt, times

__all__ = [
    "MAX_INFLATED",
    "MAX_RECORDS",
    "Columns",
    "Header",
    "InvalidBatchError",
    "check",
    "columns",
    "control",
    "encoded",
    "headers",
    "inflated_size",
    "patched",
    "rebuilt",
    "stamped",
    "times",
]
