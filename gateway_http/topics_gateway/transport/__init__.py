"""A generic ASGI transport: HTTP/1.1, HTTP/2 with prior knowledge and WebSocket on one port, in cleartext or TLS.

It knows nothing of topics. The one public name is `HttpServer`.
"""

from topics_gateway.transport.server import HttpServer

__all__ = ["HttpServer"]
