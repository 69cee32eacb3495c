"""One API over the engines of several shards."""
