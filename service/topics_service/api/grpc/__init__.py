"""The gRPC door: it turns messages into the engine's requests and replies, and errors into `google.rpc.Status`."""
