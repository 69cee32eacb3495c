"""Handlers of gRPC methods, and the way in which interceptors wrap them."""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import grpc

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"  # generic in the stubs only
Context = grpc.aio.ServicerContext[Any, Any]

OUR_METHODS: Final = "/topics.v1."

_MAKERS: Final[dict[tuple[bool, bool], Callable[..., Any]]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


def function_of(handler: Any) -> Any:
    """Return the function that serves the method, of whichever kind it is."""
    return handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream


def wrap_handler(
    handler: Any,
    wrap: Callable[..., Any],
    *arguments: Any,
    parse: Callable[[bytes], Any] | None = None,
    serialize: Callable[[Any], bytes] | None = None,
) -> Any:
    """Return a handler of the same kind whose function is `wrap(function, *arguments)`.

    `parse` and `serialize` replace those of the handler if given.
    """
    make = _MAKERS[bool(handler.request_streaming), bool(handler.response_streaming)]
    return make(
        wrap(function_of(handler), *arguments),
        parse or handler.request_deserializer,
        serialize or handler.response_serializer,
    )
