"""Topics as Iceberg tables: each topic becomes a table that follows it, record for record."""
