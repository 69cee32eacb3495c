#!/usr/bin/env bash
# smoke.sh: a newcomer's first minutes on Debian, in a clone, with no programs but those of the essential packages, make and
# python3 (with python3-venv): `make run` to the first answer, a record written and read, an extra added as a hint says, the
# end. And every line of constraints.txt has to install on Debian's Python.
set -euo pipefail
cd "$(dirname "$0")/../.."

limit=150 # seconds to the first answer; on an idle machine with a warm cache it takes less than 30
work=$(mktemp -d)
group=
trap 'test -z "$group" || kill -KILL -- "-$group" 2>/dev/null || true; rm -rf "$work"' EXIT
die() {
  echo "smoke: $*" >&2
  test ! -e "$work/log" || tail -n 40 "$work/log" >&2
  exit 1
}

# The programs of the packages, and a python3 that is Debian's.
mkdir "$work/bin"
packages=$(dpkg-query -W -f '${Essential} ${Package}\n' | sed -n 's/^yes //p')
for package in $packages make; do
  dpkg -L "$package" | sed -nE '/^\/(usr\/)?s?bin\/[^/]+$/p' | xargs -r ln -sf -t "$work/bin"
done
printf '#!/bin/sh\nexec /usr/bin/python3 "$@"\n' >"$work/bin/python3"
chmod +x "$work/bin/python3"

git clone --quiet . "$work/clone"
cd "$work/clone"
export PATH="$work/bin"
for variable in $(compgen -e | grep -E '^(TOPICS_|PYTHON|PYENV_|VIRTUAL_ENV|MAKE|PYTEST_)'); do unset "$variable"; done
python3 --version

export TOPICS_PORT=0 TOPICS_PORT_FILE=$work/http TOPICS_GRPC_PORT=0 TOPICS_GRPC_PORT_FILE=$work/grpc
SECONDS=0
setsid make run >"$work/log" 2>&1 &
group=$!
answers() {
  test -s "$work/http" && .venv/bin/python -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=5)' \
    "http://$(cat "$work/http")/v0/ready" 2>/dev/null
}
until answers; do
  kill -0 "$group" 2>/dev/null || die "make run ended"
  ((SECONDS < limit)) || die "no answer within $limit s"
  sleep 0.2
done
echo "smoke: the first answer after $SECONDS s, $(du -sm .venv | cut -f 1) MB in .venv"

export TOPICS_URL
TOPICS_URL=$(cat "$work/grpc")
.venv/bin/topics append hello '{"text": "from the shell"}' >/dev/null
read=$(.venv/bin/topics read hello)
grep -qF '{"text": "from the shell"}' <<<"$read" || die "topics read printed: $read"
.venv/bin/topics serve --help | grep -q -- --kafka-port || die "topics serve --help lists no settings"

# What a hint says can be typed: afterwards the extra is there, and so the bucket is what is wrong.
hint=$(.venv/bin/topics backup list --from s3://bucket 2>&1) && die "topics backup needs no extra"
line=${hint#topics backup: object stores need obstore: }
test "$line" = ".venv/bin/python -m pip install -e '.[backup]'" || die "the hint is: $hint"
eval "$line --quiet --disable-pip-version-check --constraint constraints.txt"
.venv/bin/python -c 'import obstore'

kill -TERM "$group"
wait "$group" || true
! answers || die "the server runs on after the end of make"
group=

# Every line of the constraints, also of what is not installed here.
.venv/bin/python -m pip install --dry-run --quiet --disable-pip-version-check --requirement constraints.txt
echo "smoke: all of it in $SECONDS s"
