"""The Kafka door: a listener that unmodified Kafka clients speak to."""
