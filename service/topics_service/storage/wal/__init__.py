"""RocksDB's write-ahead log: reading it, its archive, and the checks of a start and a repair."""
