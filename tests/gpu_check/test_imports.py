"""Every module and every change of vLLM, under vLLM's build for CUDA."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import daft_vllm


def test_every_module_can_be_imported() -> None:
    failed = {}
    for module in pkgutil.walk_packages(daft_vllm.__path__, "daft_vllm."):
        if module.name.endswith("__main__") or module.name.endswith("_main"):
            continue
        try:
            importlib.import_module(module.name)
        except Exception as e:
            failed[module.name] = repr(e)
    assert failed == {}


def test_every_change_of_vllm_fits() -> None:
    from daft_vllm.engine.patches.registry import states, unfitting

    found = states()
    assert len(found) > 5
    assert [(patch.name, problem) for patch, problem in unfitting(found, cpu=False, adapters=True)] == []


PLUGIN = """
import os
os.environ["DAFT_VLLM_OWNER_PID"] = str(os.getppid())
import torch, vllm.v1.engine.core, vllm.v1.structured_output as so, vllm.v1.worker.gpu_model_runner as runner
before = so.XgrammarBackend, torch.Generator, runner.apply_grammar_bitmask
from daft_vllm.engine.patches.plugin import register
register()
after = so.XgrammarBackend, torch.Generator, runner.apply_grammar_bitmask
print([one is other for one, other in zip(before, after)], so.XgrammarBackend.__mro__[1] is before[0])
"""


def test_the_plugin_changes_what_it_should_and_leaves_the_cpus_changes_out() -> None:
    done = subprocess.run([sys.executable, "-c", PLUGIN], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "[False, True, True] True"
