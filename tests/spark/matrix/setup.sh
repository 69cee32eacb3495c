#!/usr/bin/env bash
# setup.sh VERSION DIRECTORY: an environment with the newest Spark of that line (4.1, 4.2, 4.3), what Connect needs, and
# the project as it lies here. For the version that .venv has it is .venv and a few packages more.
set -euo pipefail
cd "$(dirname "$0")/../../.."
version=$1 directory=$2
test -x "$directory/bin/python" || "${PYTHON3:-python3}" -m venv "$directory"
pip=("$directory/bin/python" -m pip install --quiet --disable-pip-version-check)
connect=('pandas<3' grpcio-status zstandard) # with pandas 3 Spark warns that it does not fully support it

if [[ $(.venv/bin/python -c 'import pyspark; print(pyspark.__version__)') == "$version".* ]]; then
  site='import sysconfig; print(sysconfig.get_path("purelib"))'
  echo "import site; site.addsitedir('$(.venv/bin/python -c "$site")')" >"$("$directory/bin/python" -c "$site")/project.pth"
  "${pip[@]}" --constraint constraints.txt "${connect[@]}"
else
  grep -vE '^(pyspark|py4j)==' constraints.txt >"$directory/constraints.txt"
  "${pip[@]}" --constraint "$directory/constraints.txt" --editable '.[lakehouse]' "pyspark==$version.*" "${connect[@]}"
fi
