"""``check``: finds out whether a job will run, before you pay for a GPU. It loads no weights."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import daft

from daft_vllm.engine.patches.registry import states, unfitting, vllm_version
from daft_vllm.engine.setup.config import check_engine_args
from daft_vllm.engine.setup.context import check_context, config_in
from daft_vllm.engine.setup.devices import GpuClaim, check_free, gpu_states, visible_gpus
from daft_vllm.engine.setup.preflight import check_constraint
from daft_vllm.errors import DaftVLLMError, DeviceError, ModelError, OptionError, suggest
from daft_vllm.model_configs import config_of
from daft_vllm.model_configs.cards import GIB, Card, card_named, planned_card
from daft_vllm.model_configs.memory import utilization_of
from daft_vllm.model_configs.resolution import resolve
from daft_vllm.udf.columns.parts import Messages, Part, parts_of
from daft_vllm.udf.options import DEFAULT_MODEL, PromptOptions, option_default
from daft_vllm.udf.planning.conversation import check_recommends
from daft_vllm.udf.planning.plan import spec_of
from daft_vllm.udf.preflight.architecture import BFLOAT16, check_architecture, check_card_type, check_split
from daft_vllm.udf.preflight.files import check_disk, check_files, check_tokenizer
from daft_vllm.udf.preflight.memory import check_length, check_memory
from daft_vllm.udf.preflight.model import Model
from daft_vllm.udf.preflight.report import Check
from daft_vllm.udf.prompt import BATCH_SIZE, MEDIA_BATCH_SIZE
from daft_vllm.wording import counted

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
        return {"ok": self.ok, "checks": [asdict(check) for check in self.checks]}

    def __str__(self) -> str:
        return "\n".join(f"{check.status:>8}  {check.name}: {check.seen}" for check in self.checks)

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
        A report. ``ok`` says whether the job will run; ``print`` shows a line for each check.
    """

    def given(name: str) -> Any:
        return options.get(name, option_default(name))

    parts = parts_of(messages) if messages is not None else []
    planned = planned_card(gpu, gpu_memory)
    card = planned or _card_here()
    gpus: float = given("gpus") if given("gpus") is not None else float(planned is not None or bool(visible_gpus()))
    engines, applied = given("max_concurrency"), given("apply_chat_template")
    found = Model(given("model"))
    checks: list[Check] = []

    def look(name: str, at: Callable[[], str | Check]) -> bool:
        try:
            seen = at()
            checks.append(seen if isinstance(seen, Check) else Check(name, "ok", seen))
        except DaftVLLMError as e:
            checks.append(Check(name, "failure", str(e)))
        except Exception as e:  # an odd model, of which one number isn't where others have it
            why = " ".join(str(e).split())[:200]
            checks.append(Check(name, "warning", f"not checked: {type(e).__name__}: {why}"))
        return checks[-1].status != "failure"

    def engine_options() -> str:
        engine_args = given("engine_args") or {}
        check_engine_args(engine_args)
        known = config_of(found.name)
        found.engine_args = resolve(known, card=card, goal=given("goal"), user=engine_args)
        check_context(known.config if known is not None else config_in(found.folder or found.name), found.args)
        set_here = [f"{name}={setting.value}" for name, setting in found.engine_args.items()]
        return ", ".join(set_here) or "vLLM's defaults"

    def other_options() -> str:
        # The prompt's parts, the format, and a model that daft-vllm doesn't describe, are checked below.
        model = found.name if config_of(found.name) is not None else DEFAULT_MODEL
        looked_at = {"model": model, "engine_args": found.args, "goal": None, "gpus": gpus}
        spec_of(PromptOptions.of({**options, **looked_at}), ["auto"], use_process=True)
        if given("recommended_sampling"):
            check_recommends(found.name, config_of(found.name))
        return "known, and in range"

    look("engine options", engine_options)
    look("options", other_options)
    table = df
    if table is not None and parts and not look("prompt", lambda: _prompt(parts, table)):
        df, parts = None, []
    exists = look("model", lambda: check_files(found))
    described = exists or config_of(found.name) is not None
    later: list[tuple[str, Callable[[], str | Check], bool]] = [
        ("tokenizer", lambda: check_tokenizer(found), exists),
        ("architecture", lambda: check_architecture(found), described),
        ("chat template", lambda: _chat_template(found, given("chat_template"), applied), True),
        ("modalities", lambda: _modalities(found, parts, df), described and bool(parts)),
        ("return format", lambda: _return_format(return_format, found, options), return_format is not None),
        ("context", lambda: _context(found, parts, df, options), described and bool(parts) and df is not None),
        ("memory", lambda: _memory(found, card, gpus), described),
        ("GPUs", lambda: _gpus(gpus, engines, found), not (planned is not None and not visible_gpus())),
        ("cluster", lambda: _cluster(gpus, engines), daft.get_or_infer_runner_type() == "ray"),
        ("disk", lambda: check_disk(found), described),
        ("shared memory", lambda: _shared_memory(gpus), True),
        ("batches", lambda: _batches(df, parts, engines, given("batch_size")), df is not None),
        ("changes of vLLM", lambda: _patches(gpus, given("adapters")), bool(vllm_version())),
    ]
    for name, at, possible in later:
        if possible:
            look(name, at)
        else:
            checks.append(Check(name, "skipped", "nothing to look at"))
    return CheckReport(tuple(checks))


def _patches(gpus: float, adapters: Mapping[str, str] | None) -> str | Check:
    """Return which changes of vLLM fit the installed vLLM, and which are left out.

    Raises:
        EngineStartError: no engine can run without one that doesn't fit.
    """
    found = states()
    left_out = unfitting(found, cpu=not gpus, adapters=bool(adapters))
    fit = [one.patch.name for one in found if one.problem is None and not (gpus and one.patch.cpu_only)]
    fitting = f"vLLM {vllm_version()}: {', '.join(fit)} fit"
    if not left_out:
        return fitting
    listed = "; ".join(f"{patch.name} is left out ({problem}): {patch.without}" for patch, problem in left_out)
    return Check("changes of vLLM", "warning", f"{fitting}; {listed}")


def _card_here() -> Card | None:
    """Return the card of this machine. None: it has none, or not a known one."""
    states = gpu_states(visible_gpus()[:1])
    return card_named(states[0].name, states[0].total) if states else None


def _memory(model: Model, card: Card | None, gpus: float) -> str | Check:
    check_length(model.config, model.args)
    if gpus:
        check_split(model, gpus)
        check_card_type(model, card)
    return check_memory(model, card, gpus)


def _chat_template(model: Model, given: str | None, asked: bool | None) -> str | Check:
    name = "chat template"
    if given is not None:
        return "passed"
    if asked is False:
        return "not used: prompts are sent as they are"
    tokenizer = model.tokenizer
    if tokenizer is None:
        return Check(name, "skipped", "the tokenizer is not on this machine")
    if tokenizer.chat_template:
        return _renders(tokenizer)
    config = config_of(model.name)
    if config is not None and config.prompting.chat_template is not None:
        return "that of the model's config"
    missing = "the model has none: base models have none. Use the instruction-tuned model, or pass chat_template="
    if asked:
        raise ModelError(missing)
    return Check(name, "warning", f"{missing}; prompts are sent as they are")


def _renders(tokenizer: Any) -> str | Check:
    """Return that the model's own chat template is used. Raise ``ModelError`` if it can't be read."""
    from jinja2 import TemplateError, TemplateSyntaxError

    try:
        tokenizer.apply_chat_template(
            [{"role": "user", "content": "Hello."}], tokenize=False, add_generation_prompt=True
        )
    except TemplateSyntaxError as e:
        raise ModelError(
            f"the model's chat template is damaged ({e}): pass chat_template=, or download it again."
        ) from e
    except TemplateError as e:
        return Check("chat template", "warning", f"the model's own; it refuses a message of text alone: {e}")
    return "the model's own"


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
                why = str(e.__cause__ or e).strip().splitlines()[-1].strip()
                raise OptionError(f"the prompt can't be made of this table: {why}") from None
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


def _is_text(part: Part, df: daft.DataFrame) -> bool:
    dtype = df.select(part.column.alias("part")).schema()["part"].dtype
    return part.kind == "auto" and bool(dtype.is_string() or dtype.is_numeric() or dtype.is_boolean())


def _gpus(gpus: float, engines: int, model: Model) -> str | Check:
    visible = visible_gpus()
    if not gpus:
        if visible:
            seen = counted(len(visible), "GPU is", "GPUs are")
            return Check("GPUs", "warning", f"{seen} visible, and gpus=0 doesn't use any")
        return "none: the model runs on the CPU"
    claims: list[GpuClaim] = []
    try:
        for number in range(engines):
            try:
                claims.append(GpuClaim(gpus, visible))
            except DeviceError as e:
                few = f"{number} of {engines} engines found theirs. Lower max_concurrency or gpus."
                raise DeviceError(
                    f"{counted(engines, 'engine')} with {counted(gpus, 'GPU')} each {'is' if engines == 1 else 'are'} "
                    f"wanted, {counted(len(visible), 'GPU is', 'GPUs are')} visible "
                    f"({os.environ.get('CUDA_VISIBLE_DEVICES') or 'no mask'}): {few if number else e}"
                ) from e
        states = gpu_states([gpu for claim in claims for gpu in claim.ids])
        check_free(states, utilization_of(model.args, gpus))
        for state in states:
            if state.capability < BFLOAT16 and "float16" not in model.config.dtypes:
                raise ModelError(
                    f"a {state.name} has no bfloat16, which {model.name} needs: use dtype float32, or another card."
                )
        names = ", ".join(f"{s.name} with {s.free / 2**30:.1f} GiB free, driver {s.driver}" for s in states[:1])
        return f"{counted(engines * gpus, 'GPU')} of {len(visible)} visible: free{': ' if names else ''}{names}"
    finally:
        for claim in claims:
            claim.release()


def _shared_memory(gpus: float) -> str | Check:
    name, place = "shared memory", Path("/dev/shm")
    if not place.is_dir():
        return Check(name, "skipped", f"there is no {place}")
    free = shutil.disk_usage(place).free
    if gpus > 1 and free < GIB:
        return Check(
            name,
            "warning",
            f"{free / 2**20:.0f} MiB free in {place}, where the processes of {gpus:g} GPUs exchange tensors: in "
            "Docker, use --ipc=host or --shm-size=8g",
        )
    return f"{free / GIB:.1f} GiB free"


def _cluster(gpus: float, engines: int) -> str:
    import ray

    if not ray.is_initialized():
        return "Ray is not connected yet"
    has = ray.cluster_resources().get("GPU", 0)
    if engines * gpus > has:
        raise DeviceError(
            f"{counted(engines, 'engine')} with {counted(gpus, 'GPU')} each: {engines * gpus:g}, and the cluster has "
            f"{has:g}: lower "
            f"max_concurrency to {int(has // gpus)}, or add nodes."
        )
    nodes = [node["Resources"].get("GPU", 0) for node in ray.nodes() if node["Alive"]]
    if gpus > max(nodes, default=0):
        raise DeviceError(
            f"an engine needs {counted(gpus, 'GPU')} of one node, and the largest node has "
            f"{max(nodes, default=0):g}: lower gpus, or add a larger node."
        )
    return f"{engines * gpus:g} of {counted(has, 'GPU')}"


def _batches(df: daft.DataFrame | None, parts: list[Part], engines: int, batch_size: int | None) -> str | Check:
    assert df is not None
    rows = df.count_rows()
    media = len(parts) > 1 or any(part.kind != "auto" for part in parts)
    size = batch_size or (MEDIA_BATCH_SIZE if media else BATCH_SIZE)
    batches = -(-rows // size)
    if engines > 1 and batches < engines:
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
