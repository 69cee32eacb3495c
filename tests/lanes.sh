#!/usr/bin/env bash
# Runs make's targets in two lanes side by side, each lane one target after the other: most tests wait for servers, clients
# and clocks. What the first lane prints is shown when the second has ended. Fails if a target of either lane fails.
# usage: lanes.sh "TARGET ..." "TARGET ..."
set -uo pipefail
cd "$(dirname "$0")/.."

printed=$(mktemp)
lane() {
  local target failed=0
  for target in $1; do
    "${MAKE:-make}" --no-print-directory "$target" || failed=1
  done
  return "$failed"
}

lane "$1" >"$printed" 2>&1 &
first=$!
trap 'kill "$first" 2>/dev/null; rm -f "$printed"' EXIT
lane "$2"
second=$?
wait "$first"
failed=$(($? | second))
cat "$printed"
exit "$failed"
