"""Each place where vLLM is changed is found; and what happens if it isn't."""

from __future__ import annotations

import ast
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import daft_vllm
from daft_vllm.engine.patches import registry
from daft_vllm.engine.patches.entries import PATCHES
from daft_vllm.engine.patches.registry import apply_patch, prepare_patches, states, vllm_version
from daft_vllm.engine.patches.targets import Patch, Target
from daft_vllm.errors import EngineStartError
from tests.conftest import TINY_ARGS
from tests.engine.patches.other_vllm import changed_vllm, run_beside

ASK = """
import json, logging, sys
from daft_vllm import Constraint, EngineConfig, OfflineEngine, Request, SamplingOptions

if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    model, args = sys.argv[1], json.loads(sys.argv[2])
    constraints = [Constraint(choices=(f"choice {i}", f"option {i}")) for i in range(5)]
    constraints.append(Constraint(json_schema=json.dumps({"type": "integer", "minimum": 10, "maximum": 99})))
    constraints.append(Constraint(regex="[a-f]{3}", backend="guidance"))
    free = [None] * 3  # rows without a mask beside rows with one
    requests = [
        Request("Hello", constraint=c, sampling=SamplingOptions(max_tokens=16, temperature=0.5, seed=i))
        for i, c in enumerate([*constraints, *free])
    ]
    with OfflineEngine(EngineConfig(model, args)) as engine:
        print(json.dumps([[o.text, o.error and o.error.code] for o in engine.run(requests)]))
"""


NONE_FITS = """
from daft_vllm.engine.patches import registry

fitting = registry.states()
registry._installed_states = lambda: [
    state if state.patch.required else state._replace(problem="its target is gone") for state in fitting
]
"""
"""Put before ``ASK``: only those patches fit that an engine can't run without."""


def ask(tmp_path: Path, tiny: str, before: str = "", **args: Any) -> tuple[list[Any], str]:
    """Ask an engine that runs with the packages in ``tmp_path``. Return its answers and its log."""
    script = tmp_path / "ask.py"
    script.write_text(before + ASK, encoding="utf-8")
    done = run_beside(tmp_path, script, tiny, json.dumps({**TINY_ARGS, **args}))
    lines = done.stdout.strip().splitlines()
    return json.loads(lines[-1]) if done.returncode == 0 else [], done.stderr


def check_answers(answers: list[Any]) -> None:
    """Assert that every constraint was enforced: a model with random weights satisfies none by itself."""
    texts = [text for text, error in answers if error in (None, "truncated")]
    assert len(texts) == 10
    assert all(texts[i] in (f"choice {i}", f"option {i}") for i in range(5))
    assert 10 <= int(texts[5]) <= 99
    assert re.fullmatch("[a-f]{3}", texts[6])


def test_every_patch_fits_the_installed_release() -> None:
    assert {patch.name: problem for patch, problem in states() if problem} == {}
    assert all(vllm_version() in patch.seen for patch in PATCHES)


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name)
def test_a_target_that_was_renamed_is_missed(tmp_path: Path, patch: Patch) -> None:
    target = next(target for target in patch.targets if target.module.startswith("vllm"))
    name = target.name.split(".")[-1]
    change = {rf"\b{name}\b": f"{name}_renamed"} if name else {re.escape(target.uses): ".rewind("}
    found = {state.patch.name: state.problem for state in states(changed_vllm(tmp_path, target.module, change))}
    assert target.module in (found[patch.name] or "")
    assert found["executor"] is None or found["masks"] is not None  # the executor applies the masks


def test_other_parameters_are_noticed(tmp_path: Path) -> None:
    module = "vllm.v1.structured_output.utils"
    vllm = changed_vllm(tmp_path, module, {r"    grammar_output: GrammarOutput,\n    input_batch": "    input_batch"})
    problem = next(state.problem for state in states(vllm) if state.patch.name == "masks")
    assert "takes (scheduler_output, input_batch, logits)" in (problem or "")
    assert "is gone" in (Target("vllm.v1.nowhere").problem() or "")


def test_masks_are_put_on_in_bfloat16_by_the_patch(tmp_path: Path, tiny: str) -> None:
    """This vLLM fails if it applies masks to 16-bit logits in its own way. The engine doesn't use that way."""
    changed_vllm(
        tmp_path,
        "vllm.v1.structured_output.utils",
        {r"    grammar_bitmask = grammar_output\.grammar_bitmask\n": "    raise RuntimeError('own way')\n"},
    )
    answers, said = ask(tmp_path, tiny, dtype="bfloat16")
    check_answers(answers)
    assert "left out" not in said


def test_without_an_optional_patch_the_engine_says_so_once_and_answers(tmp_path: Path, tiny: str) -> None:
    changed_vllm(tmp_path, "vllm.v1.worker.gpu_model_runner", {r"\bapply_grammar_bitmask\b(?!,)": "apply_masks"})
    other = tmp_path / "vllm/v1/worker/gpu_model_runner.py"
    text = other.read_text(encoding="utf-8")
    other.write_text(text.replace("utils import apply_masks", "utils import apply_grammar_bitmask as apply_masks"))
    answers, said = ask(tmp_path, tiny, dtype="bfloat16")
    check_answers(answers)
    assert said.count("'masks'") == 1
    assert f"daft-vllm's change 'masks' of vLLM {vllm_version()} is left out, because" in said


@pytest.mark.slow
def test_without_any_optional_patch_the_engine_answers(tmp_path: Path, tiny: str) -> None:
    """Then vLLM starts its core itself, runs the model in a process of its own, and applies masks in its own way."""
    answers, said = ask(tmp_path, tiny, NONE_FITS, dtype="bfloat16")
    check_answers(answers)
    optional = [patch.name for patch in PATCHES if not patch.required and patch.is_used(cpu=True, reproducible=False)]
    assert [said.count(f"change '{name}'") for name in optional] == [1] * len(optional)


def test_without_a_required_patch_the_start_fails_with_both_versions(tmp_path: Path, tiny: str) -> None:
    changed_vllm(tmp_path, "vllm.v1.structured_output", {r"\bXgrammarBackend\b": "TheBackend"})
    _, said = ask(tmp_path, tiny)
    error = said.strip().splitlines()[-1]
    assert re.search(rf"EngineStartError: daft-vllm \S+ doesn't go with vLLM {re.escape(vllm_version())}: ", error)
    assert "vllm.v1.structured_output has no XgrammarBackend" in error
    assert f"Install vLLM {' or '.join(PATCHES[0].seen)}, or a newer daft-vllm." in error


def _broken(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    found = [state._replace(problem="gone") if state.patch.name in names else state for state in states()]
    monkeypatch.setattr(registry, "_installed_states", lambda: found)
    monkeypatch.setenv(registry.LEFT_OUT, "")


def test_what_is_left_out_is_known_to_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    _broken(monkeypatch, "masks", "front_end_costs")
    assert prepare_patches(cpu=True, adapters=True) == {"masks", "front_end_costs"}
    apply_patch("masks", lambda: pytest.fail("it is left out"))
    applied: list[str] = []
    apply_patch("kernels", lambda: applied.append("kernels"))
    assert applied == ["kernels"]
    assert prepare_patches(cpu=False, adapters=True) == {"front_end_costs"}  # the other is for CPUs


def test_adapters_need_their_patch(monkeypatch: pytest.MonkeyPatch) -> None:
    _broken(monkeypatch, "adapter_ops")
    assert prepare_patches(cpu=True, adapters=False) == {"adapter_ops"}
    assert prepare_patches(cpu=False, adapters=True) == set()
    with pytest.raises(EngineStartError, match="rows without an adapter would get another row's adapter"):
        prepare_patches(cpu=True, adapters=True)


@pytest.mark.parametrize(("name", "cpu"), [("same_bits", True), ("generators", True), ("batch_invariant", False)])
def test_reproducible_answers_need_their_patches(monkeypatch: pytest.MonkeyPatch, name: str, cpu: bool) -> None:
    _broken(monkeypatch, name)
    prepare_patches(cpu=cpu, adapters=True)
    prepare_patches(cpu=not cpu, adapters=True, reproducible=True)
    with pytest.raises(EngineStartError, match="Or leave out reproducible=True"):
        prepare_patches(cpu=cpu, adapters=False, reproducible=True)


def test_a_patch_that_fails_when_it_is_applied(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(registry.LEFT_OUT, "")

    def fail() -> None:
        raise AttributeError("module has no attribute 'x'")

    apply_patch("generators", fail)
    assert "'generators'" in caplog.text
    with pytest.raises(EngineStartError, match="has no attribute 'x'"):
        apply_patch("either_backend", fail)
    assert os.environ[registry.LEFT_OUT] == ""


def test_the_patches_are_a_plugin_of_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    assert prepare_patches(cpu=True, adapters=False) == set()
    monkeypatch.setattr(registry, "entry_points", lambda **_: ())
    with pytest.raises(EngineStartError, match="Install daft-vllm again"):
        prepare_patches(cpu=True, adapters=False)


def test_names_that_cannot_be_read_are_not_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a vLLM that lists its arguments and architectures elsewhere, nothing is refused because of that."""
    from daft_vllm.engine.setup import arg_types
    from daft_vllm.engine.setup.config import check_engine_args
    from daft_vllm.udf.preflight.architecture import vllm_architectures

    changed_vllm(tmp_path, "vllm.engine.arg_utils", {r"\bclass \w*EngineArgs\b": "class Arguments"})
    (tmp_path / "vllm/model_executor").unlink()
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: SimpleNamespace(submodule_search_locations=[tmp_path / name])
    )
    caches = [arg_types._tree, arg_types._arguments, arg_types._alias, arg_types.engine_arg_type, vllm_architectures]
    for cache in caches:
        cache.cache_clear()
    for names in (arg_types.vllm_engine_arg_names, vllm_architectures):
        assert names() is None
    check_engine_args({"anything": 1})
    for cache in caches:
        cache.cache_clear()


def _imported() -> set[tuple[str, str]]:
    """Return the modules of vLLM, and the names in them, that daft-vllm imports at run time."""
    found: set[tuple[str, str]] = set()
    for path in Path(daft_vllm.__file__).parent.glob("*/**/*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):  # imports that only type checkers see don't count
            if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
                node.body = []
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm":
                found |= {(str(node.module), alias.name) for alias in node.names}
            elif isinstance(node, ast.Import):
                found |= {(alias.name, "") for alias in node.names if alias.name.split(".")[0] == "vllm"}
    return found


def test_everything_that_is_imported_from_vllm_is_a_target() -> None:
    """A target has the name and its module, or is the module. A name imported from ``vllm`` may be in any module."""
    imported = _imported()
    assert ("vllm.v1.engine.async_llm", "AsyncLLM") in imported
    targets = [target for patch in PATCHES for target in patch.targets]
    modules = {target.module for target in targets}
    names = {(target.module, target.name.split(".")[0]) for target in targets}
    anywhere = {name for _, name in names}
    missing = [
        (module, name)
        for module, name in sorted(imported)
        if not (name == "" and module in modules)
        and f"{module}.{name}" not in modules
        and (module, name) not in names
        and not (module == "vllm" and name in anywhere)
    ]
    assert missing == [("vllm", "ir")]  # a package; its modules are targets


def test_every_change_is_applied_where_its_entry_says() -> None:
    """An entry alone does nothing: something has to apply it."""
    engine = Path(daft_vllm.__file__).parent / "engine"
    found = {
        (name, str(path.relative_to(engine)))
        for path in engine.glob("*/*.py")
        for name in re.findall(r'apply_patch\("(\w+)"', path.read_text(encoding="utf-8"))
    }
    assert found == {(patch.name, patch.where) for patch in PATCHES if patch.applied}
    for patch in PATCHES:
        assert (engine / patch.where).is_file()
