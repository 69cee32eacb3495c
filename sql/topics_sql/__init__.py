"""SQL: from the text of a statement to a plan that the engine runs."""
