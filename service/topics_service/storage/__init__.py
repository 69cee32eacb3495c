"""Keys and bytes: the ordered store, its layouts and the block codec. Knows nothing of topics' semantics."""
