"""The cluster id that Kafka clients see: one per data directory, forever."""

import os
from base64 import urlsafe_b64encode
from typing import Final

from topics_service.engine.transaction import Transaction
from topics_service.engine.writer import Writer
from topics_service.storage.store import Family

_KEY: Final = b"kafka_cluster_id"


def cluster_id(writer: Writer) -> str:
    """Return the cluster id, created on the first call for a data directory: 22 characters, like Kafka's own.

    Raises TopicsError if a new id can't be stored.
    """
    found = writer.store.get(Family.META, _KEY)
    if found is None:
        found = urlsafe_b64encode(os.urandom(16)).rstrip(b"=")
        with Transaction(writer) as tx:
            tx.batch.put(Family.META, _KEY, found)
            tx.commit()
    return found.decode()
