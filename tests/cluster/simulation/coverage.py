"""What the lives of a CI run must have met, and how often at least: less than half of what they do meet."""

REQUIRED: dict[str, int] = {}
