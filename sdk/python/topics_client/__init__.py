"""The topics Python SDK and command line.

The public names stand in `__init__.pyi`. They are loaded when they are used: the command line lives in this package and
has to start fast.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
