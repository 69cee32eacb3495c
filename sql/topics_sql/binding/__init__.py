"""Plans from statements: names are looked up in the catalog, values get their types, access paths are chosen."""
