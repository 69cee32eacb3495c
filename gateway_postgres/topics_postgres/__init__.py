"""The PostgreSQL gateway: a listener for psql and the drivers of PostgreSQL."""
