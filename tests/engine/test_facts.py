"""Facts about vLLM and Daft that the code relies on. If a release changes one, a test should fail here."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from daft_vllm import OfflineEngine
from daft_vllm.engine.requests.sampling import REFUSED, SamplingOptions
from daft_vllm.engine.setup.arg_types import vllm_engine_arg_names
from daft_vllm.engine.setup.environment import core_environment


def test_sampling_options_are_vllms() -> None:
    """Every option exists in vLLM, and its default differs only where the docstring says so."""
    from vllm import SamplingParams

    theirs = SamplingParams()
    known = set(SamplingParams.__struct_fields__)
    assert set(SamplingOptions.model_fields) <= known
    ours = SamplingOptions().model_dump()
    different = {name for name, value in ours.items() if (getattr(theirs, name) or None) != (value or None)}
    assert different == {"temperature", "max_tokens"}
    assert {"n", "logprobs", "structured_outputs"} <= set(REFUSED) & known | {"structured_outputs"}


def test_engine_argument_names_read_from_source_are_vllms() -> None:
    import dataclasses

    from vllm import AsyncEngineArgs

    assert vllm_engine_arg_names() == {field.name for field in dataclasses.fields(AsyncEngineArgs)}


def test_default_engine_args_are_known() -> None:
    from daft_vllm.engine.setup.environment import default_engine_args

    names = vllm_engine_arg_names() or frozenset()
    for cpu in (True, False):
        assert set(default_engine_args(cpu=cpu)) <= names


def test_user_environment_wins() -> None:
    code = (
        "import os; os.environ.update(VLLM_LOGGING_LEVEL='INFO', VLLM_PLUGINS='other')\n"
        "from daft_vllm.engine.setup.environment import prepare_environment as p; p(cpu=True)\n"
        "print(*(os.environ['VLLM_' + n] for n in ('LOGGING_LEVEL', 'PLUGINS', 'CPU_NUM_OF_RESERVED_CPU')))"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith("VLLM_")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True, timeout=60)
    assert done.stdout.split() == ["INFO", "other,daft_vllm", "0"]


@pytest.fixture
def short() -> Iterator[Path]:
    """A temporary folder with a short path."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def test_vllms_sockets_are_in_a_folder_of_this_user(short: Path) -> None:
    code = (
        "import os, shutil, stat; os.umask(0)\n"
        "from daft_vllm.engine.setup.environment import prepare_environment as p; p(cpu=True)\n"
        "folder = os.environ['VLLM_RPC_BASE_PATH']; open(folder + '/socket', 'w').close(); p(cpu=True)\n"
        "print(folder, os.environ['VLLM_RPC_BASE_PATH'], oct(stat.S_IMODE(os.stat(folder).st_mode)))\n"
        "shutil.rmtree(folder) if folder != os.environ['TMPDIR'] else None; p(cpu=True)\n"
        "assert os.path.isdir(os.environ['VLLM_RPC_BASE_PATH']), 'one that was cleaned away is made anew'"
    )

    def run(**given: str) -> list[str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")} | given
        command = [sys.executable, "-c", code]
        return subprocess.run(command, capture_output=True, text=True, env=env, check=True, timeout=60).stdout.split()

    used, variable, mode = run(TMPDIR=str(short))
    assert used == variable
    assert Path(used).parent == short
    assert mode == "0o700"
    assert list(short.glob("daft-vllm-sockets-*")) == []
    assert run(TMPDIR=str(short), VLLM_RPC_BASE_PATH=str(short))[:2] == [str(short)] * 2
    inherited = str(short / "daft-vllm-sockets-of-a-parent-that-ended")
    assert run(TMPDIR=str(short), VLLM_RPC_BASE_PATH=inherited)[0] != inherited
    killed, used_by_another = (short / f"daft-vllm-sockets-{name}" for name in ("killed", "other"))
    for folder in (killed, used_by_another):
        folder.mkdir()
        os.utime(folder, (0, 0))
    lock = os.open(used_by_another, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    run(TMPDIR=str(short))
    os.close(lock)
    assert list(short.glob("daft-vllm-sockets-*")) == [used_by_another]
    long = short / ("long" * 30)
    long.mkdir()
    used = run(TMPDIR=str(long))[0]
    assert Path(used).parent == Path("/tmp"), "a socket's path is 107 bytes at most"
    assert list(long.iterdir()) == []
    assert not Path(used).exists()
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    source = Path(str(spec.origin)).with_name("utils") / "network_utils.py"
    assert "base_rpc_path = envs.VLLM_RPC_BASE_PATH" in source.read_text(encoding="utf-8")


def test_the_core_has_huge_pages_and_the_driver_no_settings_of_it(engine: OfflineEngine) -> None:
    """vLLM's process title overwrites the core's environment in ``/proc``, so this test looks at the core's memory."""
    assert "GLIBC_TUNABLES" not in os.environ
    if "[never]" in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text():
        pytest.skip("this kernel has no transparent huge pages")
    memory = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in engine.process_ids]
    huge = [int(line.split()[1]) for text in memory for line in text.splitlines() if line.startswith("AnonHugePages:")]
    assert max(huge) > 1 << 20, "KiB; the KV cache alone is that much"


def test_a_users_memory_allocator_settings_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=1")
    with core_environment(cpu=True):
        assert os.environ["GLIBC_TUNABLES"] == "glibc.malloc.check=1"
    assert os.environ["GLIBC_TUNABLES"] == "glibc.malloc.check=1"
