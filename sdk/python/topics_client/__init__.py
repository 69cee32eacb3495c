"""The topics Python SDK and command line.

The public names stand in `__init__.pyi`. They are loaded when they are used: the command line lives in this package and
has to start fast.
"""

import os

import lazy_loader

# gRPC's own log stays off the terminal, unless somebody wants it: what goes wrong is told once, in the terms of the
# product. It reads this when it is imported, which comes later.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
