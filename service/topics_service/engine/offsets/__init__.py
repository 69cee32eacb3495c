"""Consumer groups and their committed positions, for all protocols."""
