"""Nodes and owners for tests of coordinators, and waiting for what a watch shows."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing

from topics_cluster.coordinator import Addresses, Coordinator, Node, Owner, View

ADDRESSES = Addresses(http="a:1", grpc="a:2", kafka="a:3")
ONE, TWO = (Node(name=name, addresses=ADDRESSES, zone="z", version="1") for name in ("one", "two"))


def owner(node: str, epoch: int) -> Owner:
    """An owner with the addresses of all."""
    return Owner(node=node, addresses=ADDRESSES, epoch=epoch)


async def until(coordinator: Coordinator, condition: Callable[[View], bool]) -> View:
    """The first view in which the condition holds."""
    async with asyncio.timeout(20), aclosing(coordinator.watch()) as views:  # type: ignore[type-var]
        async for view in views:
            if condition(view):
                return view
    raise AssertionError("the watch ended")
