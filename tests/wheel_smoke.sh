#!/usr/bin/env bash
# Install a wheel into a new environment outside of the checkout, and run the README's first snippet there.
set -euo pipefail
wheel=$(realpath "$1")
root=$(pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$UV" venv -q --python "${PYTHON:-python3.11}" "$work/venv"
"$UV" pip sync -q --python "$work/venv/bin/python" "$root/requirements-cpu.txt"
"$UV" pip install -q --python "$work/venv/bin/python" --no-deps "$wheel"
sed -n '/^```python first$/,/^```$/p' "$root/README.md" | sed '/^```/d' > "$work/first.py"
test -s "$work/first.py"
cd "$work"
"$work/venv/bin/python" -c "import daft_vllm, pathlib; assert pathlib.Path('$root') not in pathlib.Path(daft_vllm.__file__).parents"
"$work/venv/bin/python" first.py | tee "$work/printed"
grep -q Paris "$work/printed"
"$work/venv/bin/daft-vllm" --help > /dev/null
echo "wheel: ok"
