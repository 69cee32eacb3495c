"""Writes `docs/openapi.yaml`, the OpenAPI description of the HTTP API; `python -m topics_openapi`.

The protos say which calls there are, with which fields, and what these mean; the gateway's route table where they lie;
the access rules who may make them; the error registry what they are refused with. What JSON does differently from the
protos is declared in `forms.py` (fields) and `calls.py` (operations), and nowhere else. Not part of the server.
"""

import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "docs_site"))  # its proto_files reads the protos with their comments
