"""``check``: finds out whether a job will run, before you pay for a GPU. It loads no weights."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import daft

from daft_vllm.engine.patches.registry import vllm_version
from daft_vllm.engine.setup.config import check_engine_args
from daft_vllm.engine.setup.context import check_context, config_in
from daft_vllm.engine.setup.devices.driver import gpu_states, visible_gpus
from daft_vllm.engine.setup.preflight import check_constraint
from daft_vllm.errors import DaftVLLMError, ModelError, OptionError, suggest
from daft_vllm.model_configs import config_of
from daft_vllm.model_configs.cards import Card, card_named, planned_card
from daft_vllm.model_configs.resolution import resolve
from daft_vllm.udf.columns.parts import Messages, Part, parts_of
from daft_vllm.udf.options import DEFAULT_MODEL, PromptOptions, option_default
from daft_vllm.udf.planning.conversation import check_recommends
from daft_vllm.udf.planning.plan import spec_of
from daft_vllm.udf.planning.room import engines_of
from daft_vllm.udf.preflight.architecture import check_architecture, check_card_type, check_split
from daft_vllm.udf.preflight.chat_template import check_chat_template
from daft_vllm.udf.preflight.cluster import check_cluster
from daft_vllm.udf.preflight.connection import on_ray
from daft_vllm.udf.preflight.files import check_disk, check_files, check_tokenizer
from daft_vllm.udf.preflight.machine import (
    check_gpus_here,
    check_patches,
    check_shared_memory,
    planned_gpus,
)
from daft_vllm.udf.preflight.memory import check_length, check_memory
from daft_vllm.udf.preflight.model import Model
from daft_vllm.udf.preflight.report import Check
from daft_vllm.udf.preflight.reproducible import check_reproducible
from daft_vllm.udf.prompt import BATCH_SIZE, MEDIA_BATCH_SIZE, uses_process
from daft_vllm.wording import brief, counted, safe_line

_SAMPLE = 256
"""How many rows' prompts are tokenized."""


@dataclass(frozen=True)
class CheckReport:
    """What ``check`` found."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing failed. The report itself is true or false by it, too."""
        return all(check.status != "failure" for check in self.checks)

    def __bool__(self) -> bool:
        return self.ok

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a dict that can be written as JSON."""
        return {"ok": self.ok, "verdict": self.verdict, "checks": [asdict(check) for check in self.checks]}

    @property
    def verdict(self) -> str:
        """Whether the job will run, in one line, and which checks to look at."""
        failures, warnings = self._named("failure"), self._named("warning")
        if failures:
            return f"it won't run: {failures}{'; ' if warnings else ''}{warnings}"
        return f"it will run; {warnings}" if warnings else "it will run"

    def _named(self, status: str) -> str:
        names = [check.name for check in self.checks if check.status == status]
        return f"{counted(len(names), status)} ({', '.join(names)})" if names else ""

    def __str__(self) -> str:
        return "\n".join([*(f"{check.status:>8}  {check.name}: {check.seen}" for check in self.checks), self.verdict])

    def __getitem__(self, name: str) -> Check:
        return next(check for check in self.checks if check.name == name)


def check(
    messages: Messages | None = None,
    return_format: Any = None,
    *,
    df: daft.DataFrame | None = None,
    gpu: str | None = None,
    gpu_memory: float | str | None = None,
    **options: Any,
) -> CheckReport:
    """Check everything that can be wrong with a job, without loading the model. This takes seconds.

    Args:
        messages: as ``prompt()`` takes them. None: the prompts are not checked.
        return_format: as ``prompt()`` takes it.
        df: the table. Its first 256 rows are read, to see how long the prompts are. None: no rows are read.
        gpu: the card to plan for, as people or the driver call it: L4, A100-80, "RTX 4090", "NVIDIA H100 NVL". None:
            this machine's card, if it is known.
        gpu_memory: the card's memory in GB, or with a unit ("80GiB"), for a card that isn't known, or a part of one.
            None: that of ``gpu``.
        **options: the other arguments of ``prompt()``. ``gpus`` is 1 by default if ``gpu`` is given or a GPU is
            visible, else 0.

    Returns:
        A report. ``ok`` says whether the job will run; ``print`` shows a line for each check, and the verdict. With a
        card that this machine doesn't have, what this machine lacks is a warning.
    """

    def given(name: str) -> Any:
        return options.get(name, option_default(name))

    parts = parts_of(messages) if messages is not None else []
    planned = planned_card(gpu, gpu_memory)
    card = planned or _card_here()
    elsewhere = planned is not None and planned != _card_here()
    where = "this machine: " if elsewhere else ""
    gpus: float = given("gpus") if given("gpus") is not None else float(planned is not None or bool(visible_gpus()))
    engines = _engines(given("max_concurrency"), gpus, planned, given("ray_options"))
    applied = given("apply_chat_template")
    found = Model(given("model"))
    checks: list[Check] = []

    def look(name: str, at: Callable[[], str | Check]) -> bool:
        try:
            seen = at()
            checks.append(seen if isinstance(seen, Check) else Check(name, "ok", seen))
        except DaftVLLMError as e:
            checks.append(Check(name, "failure", str(e)))
        except Exception as e:  # an odd model, of which one number isn't where others have it
            checks.append(Check(name, "warning", f"not checked: {brief(e)}"))
        return checks[-1].status != "failure"

    def engine_options() -> str:
        engine_args = given("engine_args") or {}
        check_engine_args(engine_args)
        known = config_of(found.name)
        found.engine_args = resolve(known, card=card, gpus=gpus, goal=given("goal"), user=engine_args)
        check_context(known.config if known is not None else config_in(found.folder or found.name), found.args)
        set_here = [f"{name}={setting.value}" for name, setting in found.engine_args.items()]
        return ", ".join(set_here) or "vLLM's defaults"

    def other_options() -> str:
        # The prompt's parts, the format, and a model that daft-vllm doesn't describe, are checked below.
        model = found.name if config_of(found.name) is not None else DEFAULT_MODEL
        looked_at = {"model": model, "engine_args": found.args, "goal": None, "gpus": gpus}
        wanted = PromptOptions.of({**options, **looked_at})
        uses_process(wanted)
        spec_of(wanted, ["auto"], use_process=True)
        if given("recommended_sampling"):
            check_recommends(found.name, config_of(found.name))
        return "known, and in range"

    look("engine options", engine_options)
    look("options", other_options)
    table = df
    if table is not None and parts and not look("prompt", lambda: _prompt(parts, table)):
        df, parts = None, []
    exists = look("model", lambda: check_files(found, elsewhere=elsewhere)) and checks[-1].status == "ok"
    described = exists or config_of(found.name) is not None

    def gpus_seen() -> str | Check:
        return planned_gpus(gpus, engines, card) if elsewhere and card else check_gpus_here(gpus, engines, found)

    unknown = "" if described else "needs a model that can be read"
    no_prompt = unknown or ("" if parts else "needs a table and a prompt")
    no_table = "" if df is not None else "needs a table: --input, or df= in Python"
    no_format = "" if return_format is not None else "no return format is asked for"
    in_processes = given("use_process") is True or on_ray()
    no_ray = "" if on_ray() else "Daft runs without Ray"
    no_vllm = "" if vllm_version() else "vLLM is not installed"
    later: list[tuple[str, Callable[[], str | Check], str]] = [
        ("tokenizer", lambda: check_tokenizer(found), "" if exists else "needs the model's files, or the hub"),
        ("architecture", lambda: check_architecture(found), unknown),
        ("chat template", lambda: check_chat_template(found, given("chat_template"), applied), ""),
        ("modalities", lambda: _modalities(found, parts, df), no_prompt),
        ("return format", lambda: _return_format(return_format, found, options), no_format),
        ("context", lambda: _context(found, parts, df, options), no_prompt or no_table),
        ("memory", lambda: _memory(found, card, gpus), unknown),
        ("GPUs", gpus_seen, ""),
        ("cluster", lambda: check_cluster(gpus, engines, given("ray_options")), no_ray),
        ("disk", lambda: check_disk(found, elsewhere=elsewhere), unknown),
        ("shared memory", lambda: check_shared_memory(gpus, where), ""),
        ("batches", lambda: _batches(df, parts, engines, given("batch_size"), shares=in_processes), no_table),
        (
            "changes of vLLM",
            lambda: check_patches(gpus, given("adapters"), reproducible=given("reproducible")),
            no_vllm,
        ),
    ]
    if given("reproducible"):
        later.insert(-1, ("reproducible", lambda: _reproducible(found, gpus, card), unknown))
    for name, at, lacking in later:
        if lacking:
            checks.append(Check(name, "skipped", lacking))
        else:
            look(name, at)
    return CheckReport(tuple(checks))


def _card_here() -> Card | None:
    """Return the card that an engine on this machine would get: the freest. None: there is none, or not a known one."""
    states = gpu_states(visible_gpus())
    freest = max(states, key=lambda state: state.free, default=None)
    return card_named(freest.name, freest.total) if freest is not None else None


def _memory(model: Model, card: Card | None, gpus: float) -> str | Check:
    check_length(model.config, model.args)
    if gpus:
        check_split(model, gpus)
    if gpus and card is not None:
        check_card_type(model, card.full_name, card.capability)
    return check_memory(model, card, gpus)


def _reproducible(model: Model, gpus: float, card: Card | None) -> str:
    check_reproducible(model, gpus, card)
    return "vLLM's batch-invariant mode" if gpus else "float32, in blocks of rows of fixed sizes"


def _prompt(parts: list[Part], df: daft.DataFrame) -> str:
    """Return the types of the prompt's columns.

    Raises:
        OptionError: a column isn't in the table, or the table can't make it.
    """
    types = []
    for part in parts:
        try:
            types.append(str(df.select(part.column.alias("part")).schema()["part"].dtype))
        except Exception as e:
            names = df.schema().column_names()
            missing = [name for name in re.findall(r"col\((.*?)\)", str(part.column)) if name not in names]
            if not missing:
                why = str(e.__cause__ or e).strip().splitlines()[-1]
                raise OptionError(f"the prompt can't be made of this table: {safe_line(why)}") from None
            raise OptionError(
                f"the prompt's column {missing[0]!r} is not in the table.{suggest(missing[0], names)} Columns: "
                f"{', '.join(names)}."
            ) from None
    return ", ".join(types)


def _modalities(model: Model, parts: list[Part], df: daft.DataFrame | None) -> str:
    wanted = {part.kind for part in parts if part.kind in ("image", "audio")}
    if df is not None:
        for part in parts:
            dtype = df.select(part.column.alias("part")).schema()["part"].dtype
            while dtype.is_list():
                dtype = dtype.dtype
            if dtype.is_image() or dtype.is_fixed_shape_image():
                wanted.add("image")
    model.config.check_takes(wanted)
    return f"takes {', '.join(model.config.modalities)}"


def _return_format(return_format: Any, model: Model, options: Mapping[str, Any]) -> str:
    from daft_vllm.udf.answers.return_format import ReturnFormat

    form = ReturnFormat.of(
        return_format, enforce=options.get("enforce", "strict"), backend=options.get("backend", "auto")
    )
    for constraint in form.constraints:
        check_constraint(constraint, model.tokenizer_of)
    return f"a column of {form.dtype}"


def _context(model: Model, parts: list[Part], df: daft.DataFrame | None, options: Mapping[str, Any]) -> str | Check:
    assert df is not None
    if model.tokenizer is None:
        return Check("context", "skipped", "the tokenizer is not on this machine")
    given = model.engine_args.get("max_model_len")
    context = int(given.value) if given is not None and int(given.value) > 0 else model.config.max_model_len
    texts = [
        part.column.cast(daft.DataType.string()).alias(f"p{i}") for i, part in enumerate(parts) if _is_text(part, df)
    ]
    if not texts:
        return Check("context", "skipped", "the prompt has no text")
    rows = df.limit(_SAMPLE).select(*texts).to_pydict()
    joined = ["\n".join(text or "" for text in row) for row in zip(*rows.values(), strict=True)]
    if not joined:
        return Check("context", "warning", "the table has no rows")
    extra = 0  # the chat template's own tokens
    if model.tokenizer.chat_template:
        empty = [{"role": "user", "content": ""}]
        extra = len(model.tokenizer.apply_chat_template(empty, add_generation_prompt=True, return_dict=False))
    lengths = sorted(len(ids) + extra for ids in model.tokenizer(joined, add_special_tokens=False)["input_ids"])
    too_long = sum(length >= context for length in lengths)
    answer = options.get("max_tokens", 1024)
    summary = (
        f"of {counted(len(lengths), 'row')} the longest prompt has {lengths[-1]} tokens, half have "
        f"{lengths[len(lengths) // 2]} or more; the context takes {context}"
    )
    if too_long and options.get("truncate_prompt_tokens") is None:
        raise ModelError(
            f"{summary}: {counted(too_long, 'row')} would fail. Raise max_model_len in engine_args if the model allows "
            "it, shorten the prompts, or pass truncate_prompt_tokens=-1."
        )
    if isinstance(answer, int) and lengths[-1] + answer > context:
        short = f"the longest prompts leave less than max_tokens={answer} for an answer"
        return Check("context", "warning", f"{summary}: {short}")
    return summary


def _engines(
    max_concurrency: int | str, gpus: float, planned: Card | None, ray_options: Mapping[str, Any] | None
) -> int:
    """Return how many engines there are. On a card that this machine doesn't have, ``"auto"`` is one."""
    if max_concurrency == "auto" and planned is not None:
        return 1
    try:
        return engines_of(max_concurrency, gpus, ray_options)
    except OptionError:  # the check of the GPUs says it
        return 1


def _is_text(part: Part, df: daft.DataFrame) -> bool:
    dtype = df.select(part.column.alias("part")).schema()["part"].dtype
    return part.kind == "auto" and bool(dtype.is_string() or dtype.is_numeric() or dtype.is_boolean())


def _batches(
    df: daft.DataFrame | None, parts: list[Part], engines: int, batch_size: int | None, *, shares: bool
) -> str | Check:
    """Return how many batches there are. ``shares``: whether each engine has batches of its own."""
    assert df is not None
    rows = df.count_rows()
    media = len(parts) > 1 or any(part.kind != "auto" for part in parts)
    size = batch_size or (MEDIA_BATCH_SIZE if media else BATCH_SIZE)
    batches = -(-rows // size)
    if shares and batches < engines:
        fits = max(1, rows // (4 * engines))
        return Check(
            "batches",
            "warning",
            f"{counted(rows, 'row')} in batches of {size}: {counted(batches, 'batch', 'batches')} for {engines} "
            f"engines, so some engines stay idle: use batch_size={fits}.",
        )
    return (
        f"{counted(rows, 'row')} in {counted(batches, 'batch', 'batches')} of at most {size} for "
        f"{counted(engines, 'engine')}"
    )
