"""From sampling options and a constraint to vLLM's ``SamplingParams``."""

from __future__ import annotations

import copy
import hashlib
from typing import TYPE_CHECKING, Any

from daft_vllm.engine.constraints.constraint import Constraint
from daft_vllm.engine.constraints.enforcement import vllm_arguments
from daft_vllm.engine.drafts.start import OFF
from daft_vllm.engine.patches.front_end import params_class
from daft_vllm.engine.requests.sampling import SamplingOptions

if TYPE_CHECKING:
    from vllm import SamplingParams


def sampling_params(
    sampling: SamplingOptions, constraint: Constraint | None, *, detokenize: bool, draft: bool = True
) -> SamplingParams:
    """Return vLLM's own object. It asks for the final output only. Imports vLLM.

    Args:
        sampling: the row's options.
        constraint: what the answer has to satisfy.
        detokenize: whether vLLM makes the answer's text.
        draft: whether tokens may be guessed.

    Raises:
        SchemaError: the constraint cannot be enforced.
    """
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    structured = StructuredOutputsParams(**vllm_arguments(constraint)) if constraint is not None else None
    return params_class()(
        **sampling.model_dump(),
        structured_outputs=structured,
        detokenize=detokenize,
        extra_args=None if draft else {OFF: True},
        output_kind=RequestOutputKind.FINAL_ONLY,
        # vLLM makes a shallow copy for each row instead of a deep one. Deep copies take 14% of the front end's CPU time
        # at 16 tokens a row. Rows with the same options share the objects inside, and vLLM changes these in the same
        # way for each row.
        skip_clone=True,
    )


def end_of_text(model_config: Any) -> frozenset[int]:
    """Return the tokens that end a text by the model's generation config. vLLM adds them to a row's stop tokens."""
    tokens = (model_config.try_get_generation_config() or {}).get("eos_token_id")
    return frozenset([tokens] if isinstance(tokens, int) else tokens or ())


def row_seed(seed: int, prompt: bytes, media: bytes) -> int:
    """Return a row's own seed: the same for the same prompt, whatever the order, the batch and the engine.

    Args:
        seed: the seed of all rows.
        prompt: the prompt's packed tokens.
        media: digest of the prompt's media and adapter.

    Returns:
        A number of 63 bits.
    """
    digest = hashlib.blake2b(prompt, digest_size=8, salt=seed.to_bytes(8, "little", signed=True), person=media[:16])
    return int.from_bytes(digest.digest(), "little") >> 1


def with_seed(params: SamplingParams, seed: int) -> SamplingParams:
    """Return a copy with another seed. It shares the objects inside, as rows with the same options do."""
    own = copy.copy(params)
    own.seed = seed
    return own
