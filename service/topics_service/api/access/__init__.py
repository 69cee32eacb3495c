"""Authentication, authorization and limits of callers."""
