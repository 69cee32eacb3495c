"""The composition root: settings in, one serving process out."""
