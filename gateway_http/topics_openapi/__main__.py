"""Write `docs/openapi.yaml`; with `--check` write nothing and fail on a difference."""

import argparse
import sys

from topics_openapi import ROOT
from topics_openapi.document import document, text

TARGET = ROOT / "docs" / "openapi.yaml"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="topics_openapi", description="Write the OpenAPI description of the HTTP API."
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the file is not up to date")
    arguments = parser.parse_args()
    new = text(document(ROOT / "proto"))
    if arguments.check:
        if not TARGET.exists() or TARGET.read_text(encoding="utf-8") != new:
            sys.stderr.write(f"{TARGET.name} is not up to date: run `make proto`\n")
            return 1
        return 0
    TARGET.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
