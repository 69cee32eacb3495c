"""Workers: call a handler for each job of a queue."""
