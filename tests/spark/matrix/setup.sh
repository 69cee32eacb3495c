#!/usr/bin/env bash
# setup.sh VERSION DIRECTORY: an environment that sees .venv, with the newest Spark of that line (4.1, 4.2, 4.3) in front of
# the one there, and pandas for Connect.
set -euo pipefail
cd "$(dirname "$0")/../../.."
version=$1 directory=$2
site='import sysconfig; print(sysconfig.get_path("purelib"))'
test -x "$directory/bin/python" || .venv/bin/python -m venv --without-pip "$directory"
echo "import site; site.addsitedir('$(.venv/bin/python -c "$site")')" >"$("$directory/bin/python" -c "$site")/project.pth"
pip=(.venv/bin/python -m pip --python "$directory/bin/python" install --quiet --disable-pip-version-check)

if [[ $(.venv/bin/python -c 'import pyspark; print(pyspark.__version__)') != "$version".* ]]; then
  "${pip[@]}" --ignore-installed "pyspark==$version.*"
fi
"${pip[@]}" --constraint constraints.txt 'pandas<3' # with pandas 3 Spark warns that it does not fully support it
