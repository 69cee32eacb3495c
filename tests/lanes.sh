#!/usr/bin/env bash
# Runs make's targets in two lanes side by side, each lane one target after the other: most tests wait for servers, clients
# and clocks. Every line is prefixed by its target. Fails if a target fails. A target that takes over half an hour hangs: it
# is ended by SIGABRT, on which pytest prints where each of its threads is.
# usage: lanes.sh "TARGET ..." "TARGET ..."
set -uo pipefail
cd "$(dirname "$0")/.."

lane() {
  local target began failed=0
  for target in $1; do
    began=$SECONDS
    if timeout --signal ABRT --kill-after 30 30m "${MAKE:-make}" --no-print-directory "$target" 2>&1; then
      echo "passed in $((SECONDS - began)) s"
    else
      echo "FAILED after $((SECONDS - began)) s"
      false
    fi | sed --unbuffered "s/^/[$target] /" || failed=1
  done
  return "$failed"
}

lane "$1" &
first=$!
trap 'kill "$first" 2>/dev/null' EXIT
lane "$2"
second=$?
wait "$first"
exit "$(($? | second))"
