"""The catalog of PostgreSQL, as far as clients ask: relations, functions and queries of them."""
