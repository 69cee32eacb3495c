#!/usr/bin/env bash
# What the tests of the SDKs for Go and Node need: grpcurl and the programs' packages built, into build/sdk-clients and
# Go's cache; the TypeScript client compiled; node_modules beside package.json. What a missing toolchain would build is
# left out, and its tests are skipped. Ends with 3 if something was left out.
set -euo pipefail
cd "$(dirname "$0")"
build="$PWD/../../../build/sdk-clients"
sdk="$PWD/../../../sdk/generated/ts"
mkdir -p "$build"
missing=()

if command -v go >/dev/null; then
  (cd go && go build -o "$build/grpcurl" github.com/fullstorydev/grpcurl/cmd/grpcurl && go vet ./...)
else
  missing+=(go)
fi

if command -v npm >/dev/null; then
  npm ci --silent --no-audit --no-fund --prefix "$sdk"
  npm run --silent --prefix "$sdk" build
  npm ci --silent --no-audit --no-fund --prefix node
else
  missing+=(npm)
fi

if ((${#missing[@]})); then
  echo "SDK clients left out, their tests will be skipped; not installed: ${missing[*]}" >&2
  exit 3
fi
