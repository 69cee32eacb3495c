"""The log engine: topics, records, retention and reads, free of I/O, gRPC, HTTP and RocksDB.

Every call takes and returns plain structs (`model`), acts at once on the caller's thread and may be driven by a
simulator: the clock and the store are injected. Start at `engine.Engine`.
"""
