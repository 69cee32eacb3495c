"""Lives of a few nodes that share an object store, in virtual time."""
