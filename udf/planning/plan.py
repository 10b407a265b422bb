"""Checks the options of ``prompt()`` before any model is loaded, and turns them into what a worker gets."""

from __future__ import annotations

from collections.abc import Sequence

from daft_vllm.engine.requests.sampling import SamplingOptions
from daft_vllm.engine.setup.preflight import check_sampling_for
from daft_vllm.errors import OptionError
from daft_vllm.model_configs import Prompting, known_folder
from daft_vllm.udf.columns.parts import PartKind, examples_of
from daft_vllm.udf.options import PromptOptions
from daft_vllm.udf.planning.answer import answer_of, check_format, preambles_of, warn_about_format
from daft_vllm.udf.planning.conversation import recommended_numbers, template_kwargs, thinking_of
from daft_vllm.udf.planning.engine import engine_config, known_config
from daft_vllm.udf.planning.room import engines_of
from daft_vllm.udf.worker.spec import PromptSpec


def spec_of(
    options: PromptOptions,
    parts: Sequence[PartKind],
    turns: Sequence[Sequence[PartKind]] = (),
    *,
    use_process: bool,
) -> PromptSpec:
    """Check the options of ``prompt()`` and return what a worker gets.

    Args:
        options: the options.
        parts: what each column of the messages contains.
        turns: for each message that follows, what each of its columns contains.
        use_process: whether the engine runs in another process than this one.

    Raises:
        OptionError: an option is unknown, out of range, or contradicts another.
        SchemaError: ``return_format`` cannot be used.
        ModelError: ``model`` is a folder that doesn't exist or has no model, or the model doesn't take the prompt's
            media.
    """
    known = known_config(options.model)
    if known is not None:
        known.check_takes(kind for kinds in (parts, *turns) for kind in kinds if kind in ("image", "audio"))
    prompting = known.prompting if known is not None else Prompting()
    answer = answer_of(options, prompting)
    engine = engine_config(options, known, prompting)
    # With processes the driver stays small: only the workers import torch, which xgrammar and tokenizers need.
    tokenizer_of = None if use_process else str(engine.engine_args.get("tokenizer") or known_folder(options.model))
    check_format(answer.format, tokenizer_of)
    enforced = bool(answer.format.constraints)
    thinking = thinking_of(options, engine, is_parsed=answer.is_parsed, is_enforced=enforced)
    kwargs = template_kwargs(options, prompting, thinking)
    sampling = options.common_sampling
    if options.recommended_sampling:
        sampling = sampling.over(recommended_numbers(options, known, thinking, kwargs))
    row_options = tuple(options.row_sampling)
    if options.reproducible:
        _check_reproducible(sampling, row_options, [*parts, *(kind for kinds in turns for kind in kinds)])
    constraints = answer.format.constraints
    check_sampling_for(engine, sampling.model_dump(), constraints=constraints, tokenizer_of=tokenizer_of)
    if options.store_retry is not None:
        changed = sampling.replace(dict(options.store_retry))
        if options.reproducible:
            _check_reproducible(changed, row_options, parts)
        check_sampling_for(engine, changed.model_dump(), constraints=constraints, tokenizer_of=tokenizer_of)
    describes = options.describe_schema and options.apply_chat_template is not False
    warn_about_format(answer.format, None if "max_tokens" in row_options else sampling.max_tokens, tokenizer_of)
    return PromptSpec(
        engine=engine,
        sampling=sampling,
        format=answer.format,
        options=options.for_worker(),
        parts=tuple(parts),
        turns=tuple(tuple(kinds) for kinds in turns),
        examples=examples_of(options.examples, answer.format.write),
        preambles=preambles_of(answer.format) if describes else {},
        thinking=thinking,
        toolbox=answer.toolbox,
        chat_template_kwargs=kwargs,
        row_options=row_options,
        row_system_message=options.has_column("system_message"),
        row_adapter=options.has_column("adapter"),
        engines=1 if use_process else engines_of(options.max_concurrency, engine.gpus),
        row_key=options.row_key is not None,
        claim_gpus=True,
    )


def _check_reproducible(sampling: SamplingOptions, row_options: Sequence[str], kinds: Sequence[PartKind]) -> None:
    """Raise ``OptionError`` if rows draw without a seed, or have media, whose encoders nobody tried batch by batch."""
    may_draw = sampling.temperature > 0 or "temperature" in row_options
    if may_draw and sampling.seed is None and "seed" not in row_options:
        raise OptionError(
            "reproducible=True needs a seed where the temperature is above 0: pass seed=0, or any other number, from "
            "which each row gets a seed of its own; or leave temperature out."
        )
    media = sorted({kind for kind in kinds if kind in ("image", "audio")})
    if media:
        raise OptionError(f"reproducible=True is for text, and the prompt has {' and '.join(media)}: leave one out.")
