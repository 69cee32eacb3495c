"""Errors of a server that can't start."""


class StartError(Exception):
    """The server can't start. The message is for the operator."""
