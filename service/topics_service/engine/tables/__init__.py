"""Tables, their indexes and the routes that make topics of their changes: pure code on the store of the topics."""
