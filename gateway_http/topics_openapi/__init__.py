"""Writes `docs/openapi.yaml`, the OpenAPI description of the HTTP API; `python -m topics_openapi`.

The protos have the calls, their fields and meanings; the gateway's route table where they lie; the access rules have
their scopes; the error registry has their errors. Differences between JSON and the protos are declared in `forms.py`
(fields) and `calls.py` (operations), and nowhere else. Not part of the server.
"""

import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "docs_site"))  # its proto_files reads the protos with their comments
