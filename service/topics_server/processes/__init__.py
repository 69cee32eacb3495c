"""A server with shards: one process or several, each with some of them, which answer any call together."""
