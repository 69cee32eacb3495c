#!/usr/bin/env bash
# Checks the contract and generates the code that comes from it. Run from the root of the repository.
#
#   proto/generate.sh            lint, format, no breaking change since the last release, then generate
#   proto/generate.sh --check    the same checks, without generating
#   proto/generate.sh --release  as the first, but take today's contract as the new release to compare with
#
# PYTHON names the interpreter whose environment holds buf, grpc_tools and mypy-protobuf. The checks and the Python code
# need no network. The plugins for Go and TypeScript are fetched once, by `go install` and `npm ci`; a language whose
# toolchain is missing is left as it is, and the script says so. What did not change is not touched.
set -euo pipefail

python=${PYTHON:-.venv/bin/python}
mode=${1:-}
image=proto/image.binpb
deps=build/googleapis
fresh=build/generated
protoc_gen_go=v1.36.12
protoc_gen_go_grpc=v1.6.2

die() {
  echo "proto/generate.sh: $*" >&2
  exit 1
}

# Takes a tree that was generated under $fresh to its place, unless it is there already.
publish() {
  if ! diff --recursive --brief --exclude __pycache__ "$fresh/$1" "$1" >/dev/null 2>&1; then
    rm -rf "$1"
    mkdir -p "$(dirname "$1")"
    cp -r "$fresh/$1" "$1"
  fi
}

[[ -f buf.yaml && -d proto/topics/v1 ]] || die "run it from the root of the repository"
case $mode in '' | --check | --release) ;; *) die "unknown option: $mode" ;; esac

# The tools are scripts beside the interpreter.
PATH="$("$python" -c 'import sysconfig; print(sysconfig.get_path("scripts"))'):$PATH"
export PATH

# The googleapis files behind google.api.http and the details of errors come from a pip package, never from this
# repository.
googleapis=$("$python" -c 'import google.api.annotations_pb2 as a, pathlib; print(pathlib.Path(a.__file__).parents[1])')
mkdir -p "$deps/google/api" "$deps/google/rpc"
echo '*' >"$deps/.gitignore"
cp "$googleapis/api/annotations.proto" "$googleapis/api/http.proto" "$deps/google/api/"
cp "$googleapis/rpc/error_details.proto" "$deps/google/rpc/"

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

rm -rf "$fresh"

generate_python() {
  local out=$fresh/sdk/generated/python
  buf generate proto --output "$fresh"
  "$python" -m grpc_tools.protoc -Iproto -I"$deps" --grpc_python_out="$out" proto/topics/v1/*.proto

  # Files without a service get an empty stub: drop it.
  for stub in "$out"/topics/v1/*_pb2_grpc.py; do
    case $stub in *_service_pb2_grpc.py) ;; *) rm -f "$stub" "${stub}i" ;; esac
  done

  # The import path is topics_proto.v1: a wheel must not claim a module as general as `topics`.
  mv "$out/topics" "$out/topics_proto"
  sed --in-place --regexp-extended \
    's/^(from|import) topics\.v1/\1 topics_proto.v1/; s/\btopics\.v1\.([a-z_]+_pb2)\b/topics_proto.v1.\1/g' \
    "$out"/topics_proto/v1/*.py "$out"/topics_proto/v1/*.pyi
  touch "$out/topics_proto/__init__.py" "$out/topics_proto/v1/__init__.py"
  touch "$out/topics_proto/py.typed" "$out/topics_proto/v1/py.typed"
  publish sdk/generated/python/topics_proto
}

generate_go() {
  local plugins=$PWD/build/protoc-gen-go/$protoc_gen_go-$protoc_gen_go_grpc
  [[ -x $plugins/protoc-gen-go ]] || GOBIN=$plugins go install "google.golang.org/protobuf/cmd/protoc-gen-go@$protoc_gen_go"
  [[ -x $plugins/protoc-gen-go-grpc ]] ||
    GOBIN=$plugins go install "google.golang.org/grpc/cmd/protoc-gen-go-grpc@$protoc_gen_go_grpc"
  PATH=$plugins:$PATH buf generate proto --template buf.gen.go.yaml --output "$fresh"
  publish sdk/generated/go/topics
}

generate_typescript() {
  local package=sdk/generated/ts
  if [[ ! $package/node_modules/.package-lock.json -nt $package/package-lock.json ]]; then
    npm ci --silent --no-audit --no-fund --prefix "$package"
  fi
  buf generate proto --template buf.gen.ts.yaml --output "$fresh"
  buf generate "$deps" --path "$deps/google/rpc" --template buf.gen.ts.yaml --output "$fresh"

  # One module that has everything.
  for index in index.js index.d.ts; do
    (cd "$fresh/$package/lib" && LC_ALL=C && printf 'export * from "./%s";\n' google/rpc/*_pb.js topics/v1/*_pb.js >"$index")
  done
  publish $package/lib
}

generate_python
if command -v go >/dev/null; then generate_go; else
  echo "proto/generate.sh: go is not installed: sdk/generated/go is left as it is" >&2
fi
if command -v npm >/dev/null; then generate_typescript; else
  echo "proto/generate.sh: npm is not installed: sdk/generated/ts is left as it is" >&2
fi
