"""A projection: a table in SQLite that is kept equal to what a topic says. docs/guides/events.md explains it.

    python examples/projection.py --topic orders --database orders.db --follow

Each event is {"customer": NAME, "total": NUMBER}; the table `customers` sums them up. The cursor stands in the same
database and changes in the same transaction, so each event counts exactly once, whenever the program is killed.
"""

import argparse
import signal
import sqlite3
import sys
from collections.abc import Iterable, Sequence

from topics_client import ConflictError, Gap, Record, TopicsClient, TopicsError

_TABLES = """
    CREATE TABLE IF NOT EXISTS customers (name TEXT PRIMARY KEY, orders INTEGER, total REAL);
    CREATE TABLE IF NOT EXISTS gaps (first_seq INTEGER, last_seq INTEGER, reason TEXT);
    CREATE TABLE IF NOT EXISTS place (topic TEXT PRIMARY KEY, topic_id TEXT, from_seq INTEGER);
"""
_ADD = """
    INSERT INTO customers VALUES (?, 1, ?)
    ON CONFLICT (name) DO UPDATE SET orders = orders + 1, total = total + excluded.total
"""


def format_topic_partition(database: sqlite3.Connection, topic: str, topic_id: str) -> int:
    """The cursor to go on from. If the topic was deleted and made again, the tables are emptied and begin anew."""
    row = database.execute("SELECT topic_id, from_seq FROM place WHERE topic = ?", (topic,)).fetchone()
    if row and row[0] == topic_id:
        return int(row[1])
    with database:
        database.execute("DELETE FROM customers")
        database.execute("DELETE FROM gaps")
        database.execute("INSERT OR REPLACE INTO place VALUES (?, ?, 0)", (topic, topic_id))
    return 0


def apply(database: sqlite3.Connection, items: Iterable[Record | Gap]) -> None:
    """Apply events, and the loss of events, to the tables, in the caller's transaction."""
    for item in items:
        if isinstance(item, Gap) and item.reason == "recreated":
            raise ConflictError("recreated", "the topic was recreated: start over")
        if isinstance(item, Gap):
            database.execute("INSERT INTO gaps VALUES (?, ?, ?)", (item.first_seq, item.last_seq, item.reason))
        else:
            event = item.value
            database.execute(_ADD, (event["customer"], event["total"]))


def project(client: TopicsClient, database: sqlite3.Connection, topic: str, *, follow: bool) -> None:
    """Bring the tables up to the head of the topic; with `follow` for ever, until SIGTERM or SIGINT."""
    topic_id = client.get_topic(topic).topic_id
    with client.read(topic, format_topic_partition(database, topic, topic_id), follow=follow, gaps="yield") as stream:
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, lambda *_: stream.close())
        for items in stream.batches():
            with database:  # one transaction: all of it, or nothing
                apply(database, items)
                database.execute("UPDATE place SET from_seq = ? WHERE topic = ?", (stream.position, topic))


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 1 when the server refuses or stays away."""
    parser = argparse.ArgumentParser(description="Sum up the orders of a topic in SQLite.")
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--database", default="orders.db", metavar="FILE")
    parser.add_argument("--follow", action="store_true", help="go on with what is written from now on")
    options = parser.parse_args(arguments)
    database = sqlite3.connect(options.database)
    database.executescript(_TABLES)
    try:
        with TopicsClient() as client:  # TOPICS_URL, TOPICS_API_KEY
            project(client, database, options.topic, follow=options.follow)
    except TopicsError as error:
        print(f"projection: {error}", file=sys.stderr)
        return 1
    finally:
        database.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
