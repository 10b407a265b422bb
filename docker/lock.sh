#!/usr/bin/env bash
# Writes requirements-gpu.txt: what the image for GPUs gets beside vLLM. `make lock` calls it, with UV=path/to/uv.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
# vLLM's image has Python 3.12. --no-config: the overrides of pyproject.toml are for the CPU set.
resolve() {
  "$UV" pip compile -q --no-config --python-version 3.12 --python-platform x86_64-manylinux_2_28 --no-emit-index-url \
    --no-annotate --no-header --no-strip-extras "$@"
}
vllm=$(sed -n 's/^gpu = \["\(vllm==[0-9.]*\)"\]$/\1/p' "$root/pyproject.toml")
echo "${vllm:?pyproject.toml names no release of vLLM}" > vllm.in
echo "ray[default]" > more.in # with the dashboard, which takes jobs
resolve vllm.in -o vllm.txt
names() { sed -n 's/^\([a-z0-9._-]*\).*/\1/p' "$1" | grep -v '^$' | LC_ALL=C sort -u; }
names vllm.txt > of-vllm
# The CPU set decides about all that vLLM doesn't bring.
grep -v '^#' "$root/requirements-cpu.txt" | awk -F'[=[; ]' 'NR==FNR{of[$1];next} !($1 in of)' of-vllm - > limits.txt
cp "$root/pyproject.toml" "$root/README.md" "$root/LICENSE" .
resolve -c limits.txt --extra gpu --extra ray --extra media pyproject.toml more.in -o all.txt
{
  echo "# Made by 'make lock': what Dockerfile.gpu adds to vLLM's image, and what daft-vllm needs older than vLLM takes it."
  LC_ALL=C sort all.txt | grep -vxFf vllm.txt
} > "$root/docker/requirements-gpu.txt"
