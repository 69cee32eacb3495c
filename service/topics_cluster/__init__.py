"""A shard that survives its machine: its log of objects in an object store, its followers and its owner."""
