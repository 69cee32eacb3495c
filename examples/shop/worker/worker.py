"""The worker of the shop: turns orders into receipts.

Each job of the queue `orders` is an Order; its Receipt is appended to the topic `receipts`. A job may be done twice (a
worker dies before its ack), its receipt is stored once: the append has the order's id as its key.
"""

import logging
import sys
from dataclasses import asdict, dataclass
from typing import Any, Self

from topics_client import Job, TopicsClient, TopicsError


@dataclass(frozen=True)
class Order:
    """An order of a customer; the price of one piece is in cents."""

    id: str
    customer: str
    pieces: int
    price: int

    @classmethod
    def of(cls, value: Any) -> Self:
        """An order from its JSON value. Raises ValueError."""
        match value:
            case {"id": str(id_), "customer": str(customer), "pieces": int(pieces), "price": int(price)}:
                return cls(id_, customer, pieces, price)
        raise ValueError(f"not an order: {value!r}")


@dataclass(frozen=True)
class Receipt:
    """The debt of a customer, in cents."""

    order: str
    customer: str
    total: int


def receipt_for(order: Order) -> Receipt:
    """From ten pieces on one in ten is free."""
    return Receipt(order.id, order.customer, (order.pieces - order.pieces // 10) * order.price)


def main() -> int:
    """Return 0 at a signal, 1 when the server refuses."""
    logging.basicConfig(level=logging.INFO, format="worker: %(message)s")
    with TopicsClient() as topics:  # TOPICS_URL, TOPICS_API_KEY

        def handle(job: Job) -> None:
            order = Order.of(job.value)
            receipt = receipt_for(order)
            topics.append("receipts", asdict(receipt), tag=order.customer, idempotency_key=f"receipt/{order.id}")

        try:
            topics.worker("orders", handle, concurrency=4).run()
        except TopicsError as error:
            print(f"worker: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
