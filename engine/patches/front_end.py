"""What is changed in vLLM's front end, in the process that drives it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from daft_vllm.engine.constraints.libraries.guidance import GUIDANCE_MARK

if TYPE_CHECKING:
    from vllm import SamplingParams


@functools.cache
def params_class() -> type[SamplingParams]:
    """Return vLLM's class, with the constraint that rows share checked once in place of with every row.

    The check builds the grammar anew each time: 1 ms a row for a schema of usual size (the median of those in
    ``benchmarks/guided/schemas``), 17 us being what all else of a row's bookkeeping takes.
    """
    from vllm import SamplingParams

    class CheckedOnce(SamplingParams):  # type: ignore[misc]  # vLLM's types are not followed
        def _validate_structured_outputs(self, *args: Any) -> None:
            shared = self.structured_outputs
            if shared is None or getattr(shared, "_daft_vllm_checked", False):
                return
            if shared.grammar is not None and shared.grammar.startswith(GUIDANCE_MARK):
                shared._backend = "xgrammar"  # as vLLM calls the backend that takes it; it was checked before
            else:
                super()._validate_structured_outputs(*args)
            shared._daft_vllm_checked = True

    return CheckedOnce
