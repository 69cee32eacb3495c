#!/usr/bin/env bash
# Runs one of several commands that run at the same time: prefixes its lines by NAME and says at the end how long it took.
# One that takes over half an hour hangs: it is ended by SIGABRT, on which pytest prints where each of its threads is.
# usage: lane.sh NAME COMMAND...
set -uo pipefail
name=$1
shift
timeout --signal ABRT --kill-after 30 30m "$@" > >(exec sed --unbuffered "s/^/[$name] /") 2>&1 &
running=$!
trap 'kill "$running" 2>/dev/null; exit 130' INT TERM # timeout passes it on to all that it runs
wait "$running"
code=$?
echo "[$name] $( ((code == 0)) && echo passed || echo FAILED) after $SECONDS s"
exit "$code"
