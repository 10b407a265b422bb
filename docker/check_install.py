"""Fails if an installed package doesn't fit what daft-vllm asks for: ``python check_install.py [EXTRA ...]``.

Only daft-vllm's own requirements are looked at. ``pip check`` would complain about vLLM's image, where NCCL is newer
than torch asks for.
"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement


def misfits(extras: list[str], distribution: str = "daft-vllm") -> list[str]:
    """Return what is missing or has another version, as text.

    Args:
        extras: those of its extras that have to be there.
        distribution: whose requirements are looked at.
    """
    wrong = []
    for line in requires(distribution) or ():
        one = Requirement(line)
        if one.marker is not None and not any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            continue
        try:
            there = version(one.name)
        except PackageNotFoundError:
            wrong.append(f"{one.name} is missing")
            continue
        if not one.specifier.contains(there, prereleases=True):
            wrong.append(f"{one.name} is {there}, and {distribution} needs {one.specifier}")
    return wrong


if __name__ == "__main__":
    if found := misfits(sys.argv[1:]):
        sys.exit("\n".join(found))
    print(f"daft-vllm {version('daft-vllm')}: every package fits")
