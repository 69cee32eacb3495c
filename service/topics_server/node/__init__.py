"""A server that is a node of a cluster: its doors, and its replica of the shard."""
