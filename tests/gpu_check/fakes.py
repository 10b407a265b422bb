"""Builds the libraries of a driver that isn't there: ``python -m tests.gpu_check.fakes FOLDER``.

``libnvidia-ml.so.1`` (NVML) reports made-up GPUs. ``libcuda.so.1`` has every function that vLLM's and torch's libraries
ask for, so that they load, and says that there is no device as soon as one is called.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

_NO_DEVICE = 100
_CUDA = f"""
#include <stddef.h>
int cuInit(unsigned flags) {{ return {_NO_DEVICE}; }}
int cuDriverGetVersion(int *version) {{ return *version = 13000, 0; }}
int cuDeviceGetCount(int *count) {{ return *count = 0, {_NO_DEVICE}; }}
int cuGetProcAddress(const char *name, void **found, int version, unsigned long flags) {{
  return *found = NULL, 500;
}}
int cuGetProcAddress_v2(const char *name, void **found, int version, unsigned long flags, int *status) {{
  return *found = NULL, status ? (*status = 1) : 0, 500;
}}
"""


def main(folder: Path) -> None:
    """Build both libraries."""
    folder.mkdir(parents=True, exist_ok=True)
    cuda = folder / "cuda.c"
    written = set(re.findall(r"(cu[A-Z]\w*)\(", _CUDA))
    missing = sorted(_asked_for() - written)
    cuda.write_text(_CUDA + "".join(f"int {name}(void) {{ return {_NO_DEVICE}; }}\n" for name in missing))
    _compile(Path(__file__).with_name("nvml.c"), folder / "libnvidia-ml.so.1")
    _compile(cuda, folder / "libcuda.so.1")
    print(f"{folder}: NVML, and CUDA's driver with {len(missing) + len(written)} functions")


def _asked_for() -> set[str]:
    """Return the functions of CUDA's driver that the installed libraries link to."""
    names: set[str] = set()
    for package, pattern in (("vllm", "**/*.so"), ("torch", "lib/*.so")):
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            sys.exit(f"{package} is not installed: `make gpu-check` installs vLLM's build for CUDA")
        for library in Path(spec.origin).parent.glob(pattern):
            listed = subprocess.run(
                ["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True
            )
            names |= set(re.findall(r"\bU (cu[A-Z]\w*)", listed.stdout))
    return names


def _compile(source: Path, library: Path) -> None:
    command = ["cc", "-w", "-shared", "-fPIC", f"-Wl,-soname,{library.name}", "-o", library, source]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
