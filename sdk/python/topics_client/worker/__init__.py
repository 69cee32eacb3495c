"""Workers: what calls a handler for each job of a queue."""
