#!/usr/bin/env bash
# Run what tests/conformance.txt lists of the black-box suite in ../shared/conformance; say so where there is none.
set -euo pipefail
cd "$(dirname "$0")/.."
suite=../shared/conformance
if [ ! -x "$suite/run.sh" ]; then
    echo "conformance: $suite is not here, nothing was run"
    exit 0
fi
mapfile -t listed < <(grep -vE '^\s*(#|$)' tests/conformance.txt)
CONF_CMD="${CONF_CMD:-.venv/bin/topics serve}" "$suite/run.sh" -p no:cacheprovider "${listed[@]/#/$suite/}"
