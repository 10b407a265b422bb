"""From sampling options and a constraint to vLLM's ``SamplingParams``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from daft_vllm.engine.constraints.constraint import Constraint
from daft_vllm.engine.constraints.enforcement import vllm_arguments
from daft_vllm.engine.patches.front_end import params_class
from daft_vllm.engine.requests.sampling import SamplingOptions

if TYPE_CHECKING:
    from vllm import SamplingParams


def sampling_params(sampling: SamplingOptions, constraint: Constraint | None, *, detokenize: bool) -> SamplingParams:
    """Return vLLM's own object. It asks for the final output only. Imports vLLM.

    Args:
        sampling: the row's options.
        constraint: what the answer has to satisfy.
        detokenize: whether vLLM makes the answer's text.

    Raises:
        SchemaError: the constraint cannot be enforced.
    """
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    structured = StructuredOutputsParams(**vllm_arguments(constraint)) if constraint is not None else None
    return params_class()(
        **sampling.model_dump(),
        structured_outputs=structured,
        detokenize=detokenize,
        output_kind=RequestOutputKind.FINAL_ONLY,
        # vLLM makes a shallow copy for each row instead of a deep one. Deep copies take 14% of the front end's CPU time
        # at 16 tokens a row. Rows with the same options share the objects inside, and vLLM changes these in the same
        # way for each row.
        skip_clone=True,
    )
