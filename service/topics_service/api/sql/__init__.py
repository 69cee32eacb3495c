"""SQL statements, consume and ack, once for all protocols."""
