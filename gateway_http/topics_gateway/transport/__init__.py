"""A generic ASGI transport: HTTP/1.1, HTTP/2 with prior knowledge and WebSocket on one port, in cleartext or TLS.

It knows nothing of topics. The public names are `HttpServer`, its `Limits` and `BrokenOffError`.
"""

from topics_gateway.transport.exchange import BrokenOffError
from topics_gateway.transport.registry import Limits
from topics_gateway.transport.server import HttpServer

__all__ = ["BrokenOffError", "HttpServer", "Limits"]
