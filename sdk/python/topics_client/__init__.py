"""The topics Python SDK and command line."""
