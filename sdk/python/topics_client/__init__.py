"""The topics Python SDK.

The public names are listed in `__init__.pyi` and imported on first use. The command line is a package of its own, but
both it and the server import submodules such as `units` and `installation`, and must start without loading gRPC and the
client.
"""

import os

import lazy_loader

# Keep gRPC's own log off the terminal unless it is enabled: errors are raised, in the terms of the product. gRPC reads
# the variable when it is imported, later.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
