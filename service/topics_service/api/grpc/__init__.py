"""The gRPC protocol: turns messages into the engine's requests and replies, and errors into `google.rpc.Status`."""
