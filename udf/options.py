"""From the options of ``prompt()`` to what a worker is told; checked before any model is loaded."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import daft

from daft_vllm.engine import EngineConfig, SamplingOptions
from daft_vllm.engine.constraints.constraint import check_backend
from daft_vllm.engine.constraints.enforcement import enforcement_of
from daft_vllm.engine.constraints.shortest import shortest_answer
from daft_vllm.engine.requests.toolbox import Toolbox
from daft_vllm.engine.setup.config import reasoning_parser
from daft_vllm.engine.setup.devices import visible_gpus
from daft_vllm.engine.setup.preflight import check_constraint, check_model_folder, local_tokenizer
from daft_vllm.errors import OptionError, suggest
from daft_vllm.model_configs import Prompting, check_known_model, config_of, known_folder
from daft_vllm.model_configs.resolution import resolve
from daft_vllm.udf.answers.describe import describe
from daft_vllm.udf.answers.formats import Tools
from daft_vllm.udf.answers.return_format import ReturnFormat
from daft_vllm.udf.answers.tools import CallFormat, toolbox_of, tools_of
from daft_vllm.udf.columns.files import FileAccess
from daft_vllm.udf.columns.parts import PartKind, examples_of
from daft_vllm.udf.worker.spec import PromptSpec

logger = logging.getLogger("daft_vllm")

DEFAULT_MODEL = "smollm2-135m"
"""The model of the ``demo`` extra: SmolLM2-135M-Instruct, carried by a Python package."""

_PLACING = ("max_concurrency", "batch_size")
"""Options of ``prompt()`` that no worker is told."""
_said: set[str] = set()


def spec_of(
    parts: Sequence[PartKind],
    return_format: Any = None,
    *,
    turns: Sequence[Sequence[PartKind]] = (),
    use_process: bool,
    enforce: Literal["strict", "validate"] = "strict",
    backend: Literal["auto", "xgrammar", "guidance"] = "auto",
    describe_schema: bool = True,
    thinking: bool | None = None,
    tools: Sequence[Any] | Tools = (),
    tool_choice: str = "auto",
    tool_parser: str | None = None,
    parallel_tool_calls: bool = True,
    retries: int = 0,
    system_message: str | daft.Expression | None = None,
    examples: Sequence[tuple[str, Any]] = (),
    files: FileAccess | None = None,
    model: str = DEFAULT_MODEL,
    engine_args: Mapping[str, Any] | None = None,
    goal: str | None = None,
    apply_chat_template: bool | None = None,
    chat_template: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    truncate_prompt_tokens: int | None = None,
    truncation_side: Literal["left", "right"] = "right",
    adapters: Mapping[str, str] | None = None,
    adapter: str | daft.Expression | None = None,
    gpus: float | None = None,
    dedupe: bool = True,
    on_error: Literal["null", "raise"] = "null",
    details: bool = False,
    stall_timeout: float = 300.0,
    max_restarts: int = 5,
    progress_folder: str | None = None,
    options: Mapping[str, Any],
) -> PromptSpec:
    """Check the options of ``prompt()``, whose meaning is said there, and return what a worker is told.

    Other than there, ``parts`` and ``turns`` are what the columns hold, the sampling options are one argument, and
    ``use_process`` is known: whether the engine runs in another process than this.

    Raises:
        OptionError: an option is unknown, out of range, or contradicts another.
        SchemaError: ``return_format`` cannot be used.
        ModelError: ``model`` is a folder that isn't there, isn't a model's, or doesn't take what the prompt holds.
    """
    if files is not None and not isinstance(files, FileAccess):
        raise OptionError(f"files is FileAccess(folders=[...]), got {type(files).__name__}.")
    if enforce not in ("strict", "validate"):
        raise OptionError(f"enforce is 'strict' or 'validate', got {enforce!r}.")
    check_backend(backend)
    if not isinstance(retries, int) or retries < 0:
        raise OptionError(f"retries is a whole number of at least 0, got {retries!r}.")
    if on_error not in ("null", "raise"):
        raise OptionError(f"on_error is 'null' or 'raise', got {on_error!r}.")
    said = {"system_message": system_message is not None, "turns": bool(turns), "examples": bool(examples)}
    for name in [name for name, is_given in said.items() if is_given]:
        if apply_chat_template is False:
            raise OptionError(f"{name} needs the chat template: write it into the prompts, or drop it.")
    own = [name for name in inspect.signature(spec_of).parameters if name not in ("parts", "options")]
    SamplingOptions.check_names(options, also_known=(*own, *_PLACING))
    if options.get("thinking_token_budget") is not None and not thinking:
        raise OptionError("thinking_token_budget limits the thinking that thinking=True lets the model do.")
    check_known_model(model)
    check_model_folder(model)
    known = config_of(model)
    if known is not None:
        known.check_takes(kind for kinds in (parts, *turns) for kind in kinds if kind in ("image", "audio"))
    prompting = known.prompting if known is not None else Prompting()
    engine_args = {name: setting.value for name, setting in resolve(known, goal=goal, user=engine_args).items()}
    toolbox: Toolbox | None = None
    if tools:
        if return_format is not None:
            raise OptionError("tools and return_format exclude each other: the value is a struct of calls.")
        if apply_chat_template is False:
            raise OptionError("tools need the chat template: return_format=Tools([...]) does without.")
        offered = tools_of(tools)
        form: ReturnFormat = CallFormat.of_tools(
            offered, tool_choice, parallel=parallel_tool_calls, enforce=enforce, backend=backend
        )
        toolbox = toolbox_of(offered, tool_parser or prompting.tool_parser) if tool_choice == "auto" else None
    elif tool_choice != "auto" or tool_parser is not None or not parallel_tool_calls:
        raise OptionError("tool_choice, tool_parser and parallel_tool_calls are about tools=[...], which is empty.")
    else:
        form = ReturnFormat.of(return_format, enforce=enforce, backend=backend)
    # With processes the driver stays small: torch, which xgrammar and tokenizers bring, is for the workers.
    tokenizer_of = None if use_process else str(engine_args.get("tokenizer") or known_folder(model))
    for constraint in form.constraints:
        if tokenizer_of is None:
            enforcement_of(constraint, build=False)
        else:
            check_constraint(constraint, tokenizer_of)
    if adapter is not None and not adapters:
        raise OptionError('adapter names one of adapters={"name": "/folder/of/a/lora"}, which is empty.')
    if isinstance(adapter, str) and adapter not in (adapters or {}):
        raise OptionError(f"there is no adapter {adapter!r}.{suggest(adapter, adapters or ())}")
    if gpus is None:
        gpus = _default_gpus()
    row_options = {name: value for name, value in options.items() if isinstance(value, daft.Expression)}
    engine = EngineConfig(
        model=model,
        engine_args=engine_args,
        chat_template=chat_template or prompting.chat_template,
        truncate_prompt_tokens=truncate_prompt_tokens,
        truncation_side=truncation_side,
        adapters={name: _absolute(place) for name, place in (adapters or {}).items()},
        gpus=gpus,
        stall_timeout=stall_timeout,
        max_restarts=max_restarts,
    )
    told_apart = bool(form.constraints) or toolbox is not None
    thinks = _thinking(thinking, engine, told_apart=told_apart, apply_chat_template=apply_chat_template)
    spec = PromptSpec(
        engine=engine,
        sampling=SamplingOptions.of(_of_every_row(options)),
        format=form,
        parts=tuple(parts),
        turns=tuple(tuple(asked) for asked in turns),
        files=files or FileAccess(),
        system_message=system_message if isinstance(system_message, str) else None,
        examples=examples_of(examples),
        row_system_message=isinstance(system_message, daft.Expression),
        preambles=_preambles(form) if describe_schema and apply_chat_template is not False else {},
        thinking=thinks,
        retries=retries,
        apply_chat_template=apply_chat_template,
        chat_template_kwargs=_template_kwargs(prompting, chat_template_kwargs, thinks),
        on_error=on_error,
        row_options=tuple(row_options),
        dedupe=dedupe,
        adapter=adapter if isinstance(adapter, str) else None,
        row_adapter=isinstance(adapter, daft.Expression),
        toolbox=toolbox,
        details=details,
        claim_gpus=True,
        progress_folder=progress_folder,
    )
    _say_about_format(form, spec, tokenizer_of)
    return spec


OWN_OPTIONS = frozenset(inspect.signature(spec_of).parameters) - {"parts", "turns", "use_process", "options"}
"""What ``spec_of`` takes by name; all other options are for sampling."""


def _say_about_format(form: ReturnFormat, spec: PromptSpec, tokenizer_of: str | None) -> None:
    """Say once what a user would want to know of a format before hours of work: JSON text, and too few tokens."""
    if form.json_text and (said := ", ".join(form.json_text)) not in _said:
        _said.add(said)
        logger.info("no column type holds these parts of the answer, which are JSON text: %s", said)
    tokenizer = local_tokenizer(tokenizer_of) if tokenizer_of is not None and form.constraints else None
    if tokenizer is None or "max_tokens" in spec.row_options:
        return
    shortest = [text for text in map(shortest_answer, form.constraints) if text]
    # And one for the end of the text.
    least = max((len(tokenizer(text, add_special_tokens=False)["input_ids"]) + 1 for text in shortest), default=0)
    if spec.sampling.max_tokens < least:
        logger.warning(
            "max_tokens=%d is too few: the shortest answer that satisfies return_format has about %d tokens, and rows "
            "will be cut off. Try max_tokens=%d.",
            spec.sampling.max_tokens,
            least,
            4 * least + 64,
        )


def _preambles(form: ReturnFormat) -> dict[str | None, str | None]:
    """Return what the model is told of each format, by its name."""
    if form.constraint is not None:
        return {None: describe(form.constraint)}
    return {name: describe(one.constraint) for name, one in form.forms.items() if one.constraint is not None}


def _thinking(
    asked: bool | None, engine: EngineConfig, *, told_apart: bool, apply_chat_template: bool | None
) -> bool | None:
    """Return what the engine is told about thinking; ``told_apart``: whether the answer is more than text."""
    if asked and not reasoning_parser(engine):
        raise OptionError(
            "thinking=True needs to know where this model's thinking ends: pass vLLM's name of its parser, "
            'engine_args={"reasoning_parser": "qwen3"} for example.'
        )
    if asked is None and told_apart and apply_chat_template is not False:
        return False  # else the constraint would hold the thinking, or a call be taken for one that was only considered
    return asked


def _template_kwargs(
    prompting: Prompting, given: Mapping[str, Any] | None, thinking: bool | None
) -> dict[str, Any] | None:
    """Return the chat template's arguments: the model's, over them the user's, of which ``thinking`` is one."""
    kwargs = dict(prompting.chat_template_kwargs)
    if thinking is not None:
        for name in ("enable_thinking", "thinking"):
            kwargs.pop(name, None)
    return {**kwargs, **(given or {})} or None


def _absolute(place: str) -> str:
    """Return where a folder is for every process; names on a hub stay."""
    path = Path(place).expanduser()
    return str(path.resolve()) if path.is_dir() else place


def _of_every_row(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are the same for every row."""
    return {name: value for name, value in options.items() if not isinstance(value, daft.Expression)}


def _default_gpus() -> float:
    """Return 1 where a GPU can be had, else 0, and say the latter once."""
    if daft.get_or_infer_runner_type() == "ray":
        import ray

        if ray.is_initialized():
            found = ray.cluster_resources().get("GPU", 0) >= 1
            return _say_cpu("no node of the Ray cluster has a GPU") if not found else 1
    return 1 if visible_gpus() else _say_cpu("no GPU is visible")


def _say_cpu(why: str) -> float:
    if why not in _said:
        _said.add(why)
        logger.warning("%s: the model runs on the CPU (gpus=0). Pass gpus= to choose yourself.", why)
    return 0
