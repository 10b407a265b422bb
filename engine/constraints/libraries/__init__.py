"""The grammar libraries. To add one: write a class, name it in ``Backend``, and put an object in the list below."""

from __future__ import annotations

from daft_vllm.engine.constraints.constraint import Backend
from daft_vllm.engine.constraints.libraries.base import Library
from daft_vllm.engine.constraints.libraries.guidance import Guidance
from daft_vllm.engine.constraints.libraries.xgrammar import Xgrammar

LIBRARIES: dict[Backend, Library] = {library.name: library for library in (Xgrammar(), Guidance())}
"""In the order in which ``backend="auto"`` tries them."""
