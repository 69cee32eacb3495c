#!/usr/bin/env bash
# Run what tests/conformance.txt lists of the black-box suite in ../shared/conformance, and what tests/sqlsuite.txt lists of
# the one in ../shared/sqlsuite; say so where there is none.
set -euo pipefail
cd "$(dirname "$0")/.."
export CONF_CMD="${CONF_CMD:-.venv/bin/topics serve}"

# Arguments: the folder of the suite, the list of its files and tests, further arguments of pytest.
listed() {
    local suite=$1 list=$2
    shift 2
    if [ ! -x "$suite/run.sh" ]; then
        echo "conformance: $suite is not here, nothing was run"
        return
    fi
    mapfile -t names < <(grep -vE '^\s*(#|$)' "$list")
    "$suite/run.sh" -p no:cacheprovider "$@" "${names[@]/#/$suite/}"
}

listed ../shared/conformance tests/conformance.txt
listed ../shared/sqlsuite tests/sqlsuite.txt -m "not step3"
