"""Named groups of consumers: where they stand, and who belongs to them."""
