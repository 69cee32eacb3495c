"""A worker: counts the words of texts that come as jobs of a queue. docs/guides/jobs.md explains it.

    python examples/worker.py --queue texts --results counts

Each job is {"id": ID, "text": TEXT}; its result, {"id": ID, "words": NUMBER}, is appended to the topic `counts`. A job
may be done twice (a worker dies before its ack), its result is stored once: the append has the job's id as its key.
SIGTERM lets the jobs that run end, and takes no more.
"""

import argparse
import logging
import sys
from collections.abc import Sequence

from topics_client import Job, TopicsClient, TopicsError


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 at a signal or when the queue is empty, 1 when the server refuses."""
    parser = argparse.ArgumentParser(description="Count the words of texts.")
    parser.add_argument("--queue", default="texts")
    parser.add_argument("--results", default="counts", metavar="TOPIC")
    parser.add_argument("--concurrency", type=int, default=8, metavar="N", help="jobs at a time")
    parser.add_argument("--until-empty", action="store_true", help="end when nothing is ready")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")

    with TopicsClient() as topics:  # TOPICS_URL, TOPICS_API_KEY

        def count(job: Job) -> None:
            result = {"id": job.value["id"], "words": len(job.value["text"].split())}
            topics.append(options.results, result, idempotency_key=f"{options.queue}/{result['id']}")

        worker = topics.worker(options.queue, count, concurrency=options.concurrency, until_empty=options.until_empty)
        try:
            worker.run()
        except TopicsError as error:
            print(f"worker: {error}", file=sys.stderr)
            return 1
        print(worker.statistics(), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
