#!/usr/bin/env bash
# Checks the contract and generates the code that comes from it. Run from the root of the repository, offline.
#
#   proto/generate.sh            lint, format, no breaking change since the last release, then generate
#   proto/generate.sh --check    the same checks, without generating
#   proto/generate.sh --release  as the first, but take today's contract as the new release to compare with
#
# PYTHON names the interpreter whose environment holds buf, grpc_tools and mypy-protobuf.
set -euo pipefail

python=${PYTHON:-.venv/bin/python}
mode=${1:-}
image=proto/image.binpb
out=sdk/generated/python
deps=build/googleapis

die() {
  echo "proto/generate.sh: $*" >&2
  exit 1
}

[[ -f buf.yaml && -d proto/topics/v1 ]] || die "run it from the root of the repository"
case $mode in '' | --check | --release) ;; *) die "unknown option: $mode" ;; esac

# The tools are scripts beside the interpreter.
PATH="$("$python" -c 'import sysconfig; print(sysconfig.get_path("scripts"))'):$PATH"
export PATH

# The two googleapis files behind google.api.http come from a pip package, never from this repository.
googleapis=$("$python" -c 'import google.api.annotations_pb2 as a, pathlib; print(pathlib.Path(a.__file__).parent)')
mkdir -p "$deps/google/api"
echo '*' >"$deps/.gitignore"
cp "$googleapis/annotations.proto" "$googleapis/http.proto" "$deps/google/api/"

buf lint
buf format --diff --exit-code proto

if [[ $mode == --release ]]; then
  if [[ -f $image ]] && ! buf breaking proto --against "$image"; then
    echo "proto/generate.sh: warning: this release breaks the one before" >&2
  fi
  buf build proto --exclude-source-info -o "$image"
else
  [[ -f $image ]] || die "$image is missing; proto/generate.sh --release makes it"
  buf breaking proto --against "$image"
fi
[[ $mode != --check ]] || exit 0

rm -rf "$out/topics"
mkdir -p "$out"
buf generate proto
"$python" -m grpc_tools.protoc -Iproto -I"$deps" --grpc_python_out="$out" proto/topics/v1/*.proto

# Files without a service get an empty stub: drop it.
for stub in "$out"/topics/v1/*_pb2_grpc.py; do
  case $stub in *_service_pb2_grpc.py) ;; *) rm -f "$stub" "${stub}i" ;; esac
done
touch "$out/topics/__init__.py" "$out/topics/v1/__init__.py" "$out/topics/py.typed" "$out/topics/v1/py.typed"
