"""Members of Kafka consumer groups and their assignments: the classic and the consumer (KIP-848) protocol."""
