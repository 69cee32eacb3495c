#!/usr/bin/env bash
# Builds the client programs into build/kafka-clients: jars and classes, the Go binary; node_modules beside package.json.
# What a missing toolchain would build is left out, and its tests are skipped. Ends with 3 if something was left out.
set -euo pipefail
cd "$(dirname "$0")"
build="$PWD/../../../build/kafka-clients"
mkdir -p "$build"
missing=()

if command -v mvn >/dev/null && command -v javac >/dev/null; then
  mvn --quiet --batch-mode --file java/pom.xml dependency:copy-dependencies "-DoutputDirectory=$build/java/lib"
  javac -encoding UTF-8 -Xlint:all -d "$build/java/classes" -cp "$build/java/lib/*" java/*.java
  mvn --quiet --batch-mode --file tools/pom.xml dependency:copy-dependencies "-DoutputDirectory=$build/tools/lib"
  javac -encoding UTF-8 -Xlint:all -d "$build/tools/classes" -cp "$build/tools/lib/*" tools/*.java
  touch "$build/java/.built"
else
  missing+=("mvn and javac")
fi

if command -v go >/dev/null; then
  (cd go && go build -o "$build/go/suite" .)
else
  missing+=(go)
fi

if command -v npm >/dev/null; then
  npm ci --silent --no-audit --no-fund --prefix node
else
  missing+=(npm)
fi

command -v kcat >/dev/null || missing+=(kcat)
if ((${#missing[@]})); then
  echo "Kafka clients left out, their tests will be skipped; not installed: ${missing[*]}" >&2
  exit 3
fi
