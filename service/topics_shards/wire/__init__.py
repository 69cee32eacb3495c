"""Calls between processes that hold shards: their bytes, and the connections that carry them."""
