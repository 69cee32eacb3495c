"""The Kafka gateway: a listener for unmodified Kafka clients."""
