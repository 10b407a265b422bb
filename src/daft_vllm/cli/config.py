"""``daft-vllm config``: what a model will be started with, why, and whether it fits."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from daft_vllm.cli.terminal import GPU, GPU_MEMORY, engine_args_of, fail, option, quiet
from daft_vllm.errors import DaftVLLMError, ModelError
from daft_vllm.model_configs import ModelConfig, config_of, derived_config
from daft_vllm.model_configs.advice import advice, faster
from daft_vllm.model_configs.cards import GIB, Card, planned_card
from daft_vllm.model_configs.memory import MemoryPlan, block_note, plan_memory, weights_of
from daft_vllm.model_configs.resolution import Setting, resolve
from daft_vllm.model_configs.sampling import WORDS
from daft_vllm.model_configs.splitting import split_advice, split_problem, tensor_parallel_size
from daft_vllm.model_configs.throughput import Throughput, estimate_throughput
from daft_vllm.udf.options import DEFAULT
from daft_vllm.udf.preflight.model import Model


@dataclasses.dataclass(frozen=True)
class ModelReport:
    """Everything that is shown. ``known``: a TOML file describes the model."""

    model: ModelConfig
    known: bool
    settings: Mapping[str, Setting]
    plan: MemoryPlan | None = None
    throughput: Throughput | None = None
    rows: int = 0
    dollars_per_hour: float = 0.0
    shape: tuple[int, int, int] = (0, 0, 0)
    advice: tuple[str, ...] = ()
    faster: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the engine starts on the card."""
        return self.plan is not None and self.plan.fits and not self.advice

    def as_dict(self) -> dict[str, Any]:
        """Return it as a dictionary, for ``--json``."""
        plan = self.plan
        return {
            "model": self.model.hub_name,
            "known": self.known,
            "parameters": self.model.parameters,
            "licence": self.model.licence,
            "gated": self.model.gated,
            "remote_code": self.model.remote_code,
            "sampling": self.model.sampling and dict(self.model.sampling.modes),
            "settings": {name: dataclasses.asdict(setting) for name, setting in self.settings.items()},
            "memory": plan
            and {
                **dataclasses.asdict(plan),
                "card": plan.card.name,
                "cache": plan.cache,
                "fits": self.fits,
                "concurrency": plan.concurrency,
            },
            "throughput": self.throughput and dataclasses.asdict(self.throughput),
            "advice": list(self.advice),
            "faster": list(self.faster),
        }


def model_report(
    model: str,
    *,
    card: Card | None,
    gpus: float,
    goal: str | None,
    engine_args: Mapping[str, Any],
    shape: tuple[int, int, int],
    rows: int,
    dollars_per_hour: float,
) -> ModelReport:
    """Work out what to show; the arguments are those of the command, but ``card``: the card to plan for.

    Raises:
        OptionError: the goal or an option is unknown.
        ModelError: the model isn't known, and its ``config.json`` can't be read.
    """
    config = config_of(model)
    known = config is not None
    if config is None:
        config = derived_config(model)
    settings = resolve(config, card=card, gpus=gpus, goal=goal, user=engine_args)
    if card is None:
        return ModelReport(config, known, settings)
    args = {name: setting.value for name, setting in settings.items()}
    found = Model(model, settings)
    weights = weights_of(config, args, file_bytes=found.file_bytes)
    if not weights:
        raise ModelError(f"the weights of {config.hub_name} can't be counted, so no memory can be planned.")
    plan = plan_memory(config.architecture, weights, card, gpus=gpus, engine_args=args)
    size = tensor_parallel_size(gpus, args)
    problem = split_problem(config, size, args)
    sentences = () if plan.fits else tuple(advice(config, plan, weights, args))
    if problem is not None:
        sentences = (f"vLLM can't split it over {size} GPUs: {problem}.", split_advice(config, size, args))
    prompt, cached, output = shape
    throughput = estimate_throughput(
        config, plan, args, prompt_tokens=prompt, output_tokens=output, cached_tokens=cached
    )
    better = tuple(faster(config, plan, args, shape=shape)) if throughput is not None and not sentences else ()
    return ModelReport(config, known, settings, plan, throughput, rows, dollars_per_hour, shape, sentences, better)


def thinking_words(config: ModelConfig) -> str:
    """Return when a model thinks, in words."""
    if config.prompting.thinking != "switch":
        return config.prompting.thinking
    return "unless switched off" if config.prompting.thinks_by_default else "if switched on"


def print_report(what: ModelReport, console: Console) -> None:
    """Print tables."""
    config = what.model
    described = "described by daft-vllm" if what.known else "not known: derived from its config.json"
    count = f"{config.parameters / 1e9:.2f}B" if config.parameters else "an unknown number of"
    console.print(f"{config.hub_name}: {count} parameters, {described}", highlight=False)
    console.print(
        f"takes {', '.join(config.modalities)}; context {config.max_model_len}; licence {config.licence}"
        f"{', gated' if config.gated else ''}; thinking: {thinking_words(config)}",
        highlight=False,
    )
    settings = Table("setting", "value", "from", "why", title="engine_args")
    if "max_model_len" not in what.settings:
        settings.add_row(
            "max_model_len", "-1", "daft-vllm", "the model's context, or as much of it as the memory holds"
        )
    for name, setting in what.settings.items():
        settings.add_row(name, str(setting.value), setting.origin, setting.why)
    settings.caption = "All others are vLLM's defaults."
    console.print(settings)
    if config.remote_code is not None:
        console.print(f"needs trust_remote_code=True in engine_args: {config.remote_code}", highlight=False)
    modes = config.sampling.modes if config.sampling is not None else {}
    for mode, numbers in modes.items():
        recommended = ", ".join(f"{name}={value}" for name, value in (numbers or {}).items()) or "nothing"
        console.print(f"its makers recommend{WORDS[mode] if len(modes) > 1 else ''}: {recommended}", highlight=False)
    if any(modes.values()):
        console.print("recommended_sampling=True applies that.")
    plan = what.plan
    if plan is None:
        console.print("Add --gpu to see whether it fits a card, and how fast it can be.")
        return
    table = Table("memory of each GPU", "GiB", title=f"{plan.gpus} x {plan.card.full_name}")
    for name, size in (
        ("for vLLM", plan.available),
        ("weights", plan.weights),
        ("activations", plan.activations),
        ("CUDA graphs", plan.graphs),
        ("context, kernels, buffers", plan.other),
        ("left for the KV cache", plan.cache),
    ):
        table.add_row(name, f"{size / GIB:.2f}")
    console.print(table)
    if plan.card.note:
        console.print(f"{plan.card.note}.", style="yellow", highlight=False)
    if what.fits:
        console.print(
            f"fits: a context of {plan.max_model_len} tokens, and {plan.concurrency:.1f} sequences of that length at "
            f"once; {plan.token / 1024:.1f} KiB a token on each GPU",
            highlight=False,
        )
        if blocks := block_note(config.architecture, plan.gpus, {n: one.value for n, one in what.settings.items()}):
            console.print(f"{blocks}.", highlight=False)
    if what.advice:
        console.print(f"does not fit: {' '.join(what.advice)}", style="red", highlight=False)
    _print_throughput(what, console)


def _print_throughput(what: ModelReport, console: Console) -> None:
    rate = what.throughput
    if rate is None or what.plan is None:
        return
    prompt, cached, output = what.shape
    console.print(
        f"by estimate, {rate.low:.1f} to {rate.high:.1f} rows/s (most likely {rate.rows:.1f}) of {prompt} prompt "
        f"tokens ({cached} of them shared) and {output} output tokens, {rate.sequences} at once",
        highlight=False,
    )
    for sentence in what.faster:
        console.print(f"by estimate, {sentence}", highlight=False)
    if what.rows:
        hours = rate.hours(what.rows)
        prices = [f"${each * what.dollars_per_hour * what.plan.gpus * what.plan.share:.2f}" for each in hours]
        cost = f", {prices[0]} to {prices[1]}" if what.dollars_per_hour else ""
        console.print(
            f"{what.rows} rows: {hours[0]:.2f} to {hours[1]:.2f} hours on one engine{cost}, without the load",
            highlight=False,
        )


def config(
    model: Annotated[str, typer.Argument(help="A short name, a name on the hub, or a folder.")],
    gpu: Annotated[str | None, typer.Option(help=GPU)] = None,
    gpu_memory: Annotated[str | None, typer.Option(help=GPU_MEMORY)] = None,
    gpus: Annotated[float, typer.Option(help="GPUs of each engine, or a share of one.")] = 1,
    goal: Annotated[str | None, option("goal")] = DEFAULT.goal,
    engine_args: Annotated[str, option("engine_args", "JSON.")] = "{}",
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Prompt tokens of a row.")] = 512,
    shared_tokens: Annotated[int, typer.Option(min=0, help="How many of them the rows share.")] = 0,
    output_tokens: Annotated[int, typer.Option(min=1, help="Output tokens of a row.")] = 128,
    rows: Annotated[int, typer.Option(min=0, help="Rows of the job.")] = 0,
    dollars_per_hour: Annotated[float, typer.Option(min=0, help="Price of one GPU.")] = 0.0,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a model is started with and why, whether it fits a card, and how fast it can be. Loads no weights."""
    quiet()
    try:
        from daft_vllm.engine.setup.config import check_engine_args

        args = engine_args_of(engine_args)
        check_engine_args(args)
        what = model_report(
            model,
            card=planned_card(gpu, gpu_memory),
            gpus=gpus,
            goal=goal,
            engine_args=args,
            shape=(prompt_tokens, min(shared_tokens, prompt_tokens), output_tokens),
            rows=rows,
            dollars_per_hour=dollars_per_hour,
        )
    except DaftVLLMError as e:
        fail(str(e))
        return
    if json_output:
        typer.echo(json.dumps(what.as_dict(), indent=2, default=str))
    else:
        print_report(what, Console())
    if what.plan is not None and not what.fits:
        raise typer.Exit(1)
