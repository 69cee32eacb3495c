"""The HTTP/JSON gateway: the /v0 contract on the same service calls as gRPC."""

from topics_gateway.app import create_app
from topics_gateway.settings import GatewaySettings

__all__ = ["GatewaySettings", "create_app"]
