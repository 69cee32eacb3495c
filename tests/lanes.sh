#!/usr/bin/env bash
# Runs make's targets in two lanes side by side, each lane one target after the other: most tests wait for servers, clients
# and clocks. Every line is prefixed by its target. Fails if a target fails. A target that takes over half an hour hangs: it
# is ended by SIGABRT, on which pytest prints where each of its threads is.
# usage: lanes.sh "TARGET ..." "TARGET ..."
set -uo pipefail
cd "$(dirname "$0")/.."

lane() {
  local target began running failed=0
  trap 'kill "$running" 2>/dev/null; exit 1' TERM # timeout passes it on to all that it runs
  for target in $1; do
    began=$SECONDS
    timeout --signal ABRT --kill-after 30 30m "${MAKE:-make}" --no-print-directory "$target" \
      > >(sed --unbuffered "s/^/[$target] /") 2>&1 &
    running=$!
    if wait "$running"; then
      echo "[$target] passed in $((SECONDS - began)) s"
    else
      echo "[$target] FAILED after $((SECONDS - began)) s"
      failed=1
    fi
  done
  return "$failed"
}

lane "$1" &
first=$!
lane "$2" &
second=$!
trap 'kill "$first" "$second" 2>/dev/null' EXIT
trap 'exit 130' INT TERM
wait "$first"
failed=$?
wait "$second"
exit "$(($? | failed))"
