"""Everything that decides how an engine is started, in one frozen object."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from daft_vllm.engine.setup.adapters import check_adapters
from daft_vllm.engine.setup.arg_types import check_values, vllm_engine_arg_names
from daft_vllm.engine.setup.reproducible import check_arguments
from daft_vllm.errors import MissingPackageError, OptionError, suggest
from daft_vllm.secrets import has_secrets, secrets_in

INSTALL_HINT = (
    "vLLM is not installed here. On a machine with a GPU: pip install 'daft-vllm[gpu]'. "
    "On one without: pip install --no-deps -r requirements-cpu.txt, from the daft-vllm repository."
)

# Arguments of vLLM's engine that are set by daft-vllm itself, and what to use instead.
RESERVED_ARGS = {
    "model": "it is the model= argument of prompt()",
    "disable_log_stats": "daft-vllm needs the step statistics to watch the engine's progress",
    "distributed_executor_backend": "it follows from the tensor parallel size",
}

_NOT_WITH_DRAFTS = (
    *("speculative_config", "scheduler_cls", "async_scheduling", "logits_processors", "enable_lora"),
    *("runner", "kv_transfer_config"),
)


@dataclass(frozen=True)
class EngineConfig:
    """How to start one engine. Picklable.

    Args:
        model: folder of a model, or its name on the Hugging Face hub.
        engine_args: arguments of vLLM's ``AsyncEngineArgs`` by vLLM's names. Checked by ``check_engine_args``.
        chat_template: Jinja text that replaces the model's own chat template. None: the model's.
        no_thinking_text: text that follows the chat template's in requests with ``thinking=False``, for a model whose
            template doesn't end the thinking itself.
        truncate_prompt_tokens: longest prompt in tokens; the user's text is cut to fit. -1: as long as the context
            allows, with one token left for the answer. None: never cut; a prompt that is too long is an error value.
        truncation_side: the side that is cut, ``"right"`` (the end) or ``"left"``.
        adapters: LoRA adapters, folders or names on the hub, by the names that requests use.
        gpus: GPUs this engine runs on. 0: it runs on the CPU.
        reproducible: whether a row's answer is the same whatever else the engine computes, and after a restart.
            ``reproducible.py`` has what this needs.
        draft: whether tokens of answers are guessed, for vLLM to verify (``drafts/``).
        stall_timeout: if rows are in flight, and vLLM's scheduler makes no step for this many seconds, vLLM is treated
            as dead. The default is high because the first steps on a GPU may compile kernels.
        max_restarts: how often in a row vLLM may be started again, after it died or stalled, before the engine gives
            up. Deaths are forgotten once vLLM has answered 10 times ``max_num_seqs`` rows after the last death. Default
            5: a row that kills vLLM is found after three deaths at most.
        queue_factor: how many rows may be inside vLLM at once, as a multiple of its ``max_num_seqs``. vLLM can start
            the extra rows before it gets new ones. In the worst case all running rows end in one step. So 2 keeps vLLM
            full as long as a step takes longer than sending one step's rows. Less is enough if answers are long. More
            than needed only fixes the order of rows too early, before later rows arrive. For the same reason fewer rows
            are sent if their prompts alone fill vLLM's next steps (``STEPS_AHEAD`` in ``process/thread.py``). Measured
            with a model with steps that take almost no time, 256 sequences, two cores: at 1, 1.5, 2 and 3, a row that
            writes one token took 1.7, 1.2, 1.0 and 0.9 ms; at 1, 1.5 and 2, a row that writes 16 tokens took 3.4, 3.4
            and 3.3 ms.
    """

    model: str
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    chat_template: str | None = None
    no_thinking_text: str = ""
    truncate_prompt_tokens: int | None = None
    truncation_side: str = "right"
    adapters: Mapping[str, str] = field(default_factory=dict)
    gpus: float = 0
    reproducible: bool = False
    draft: bool = False
    stall_timeout: float = 300.0
    max_restarts: int = 5
    queue_factor: float = 2.0

    def __post_init__(self) -> None:
        if self.truncation_side not in ("left", "right"):
            raise OptionError(f"truncation_side is 'left' or 'right', got {self.truncation_side!r}.")
        limit = self.truncate_prompt_tokens
        if limit is not None and limit != -1 and limit < 1:
            raise OptionError(f"truncate_prompt_tokens is -1 (as the context allows) or at least 1, got {limit}.")
        if self.gpus < 0 or (self.gpus > 1 and self.gpus != int(self.gpus)):
            raise OptionError(f"gpus is 0, a share of one GPU such as 0.5, or a whole number, got {self.gpus}.")
        if self.stall_timeout <= 0:
            raise OptionError(f"stall_timeout is a positive number of seconds, got {self.stall_timeout}.")
        if self.max_restarts < 0:
            raise OptionError(f"max_restarts is 0 (never) or more, got {self.max_restarts}.")
        if self.queue_factor < 1:
            raise OptionError(f"queue_factor is at least 1, got {self.queue_factor}.")
        if has_secrets([self.model, *self.adapters.values()]):
            raise OptionError("model and adapters are folders or names, without a token or a password: set HF_TOKEN.")
        check_engine_args(self.engine_args)
        check_adapters(self.adapters, self.engine_args)
        guided = self.engine_args.get("structured_outputs_config", {})
        if isinstance(guided, Mapping) and guided.get("backend", "xgrammar") != "xgrammar":
            raise OptionError(
                "engine_args may not set the backend of structured_outputs_config: write backend= beside return_format."
            )
        parallel = self.parallel_size
        if self.gpus > 0 and "tensor_parallel_size" in self.engine_args and parallel != max(1, int(self.gpus)):
            raise OptionError(
                f"tensor_parallel_size x pipeline_parallel_size is {parallel}, but each engine gets gpus={self.gpus}. "
                f"Write gpus={parallel}, or leave tensor_parallel_size out: it follows gpus."
            )
        if self.draft:
            self._check_draft()
        if self.reproducible:
            check_arguments(self.engine_args, self.adapters, self.gpus, parallel)
        stages = int(self.engine_args.get("pipeline_parallel_size") or 1)
        if self.gpus >= 1 and self.gpus % stages:
            raise OptionError(
                f"gpus={self.gpus:g} can't be divided by pipeline_parallel_size={stages}: write gpus={stages}, or a "
                "multiple of it."
            )

    def _check_draft(self) -> None:
        """Raise ``OptionError`` if an engine like this can't guess."""
        against = {
            "gpus": self.gpus > 0,  # vLLM 0.32 has another runner there, which takes no class of ours
            "reproducible": self.reproducible,  # the same bytes in whatever steps answers are computed
            "adapters": bool(self.adapters),  # vLLM asks for room in a step for all guesses of all rows
            "tensor_parallel_size": self.parallel_size > 1,  # the model runs in other processes than the core
        }
        against |= {name: True for name in _NOT_WITH_DRAFTS if name in self.engine_args}
        wrong = [name for name, is_set in against.items() if is_set]
        if wrong:
            raise OptionError(f"tokens can't be guessed with {', '.join(wrong)}: leave draft out, or these.")

    @property
    def parallel_size(self) -> int:
        """How many processes ``engine_args`` split the model over: tensor times pipeline parallel size."""
        sizes = (self.engine_args.get(f"{kind}_parallel_size", 1) for kind in ("tensor", "pipeline"))
        return math.prod(map(int, sizes))


def check_engine_args(engine_args: Mapping[str, Any]) -> None:
    """Raise ``OptionError`` for a name that vLLM's engine doesn't know or daft-vllm sets itself, or a wrong value.

    A secret is refused: the arguments are shown in messages, logged by vLLM, and sent to other processes.

    If vLLM isn't installed (for example on a driver without a GPU), they are checked later, in the worker.
    """
    for place in secrets_in(engine_args):
        raise OptionError(secret_refused(place))
    known = vllm_engine_arg_names()
    for name in engine_args:
        if name in RESERVED_ARGS:
            raise OptionError(f"engine_args may not hold {name!r}: {RESERVED_ARGS[name]}.")
        if known is not None and name not in known:
            raise OptionError(f"vLLM has no engine argument {name!r}.{suggest(name, known)}")
    check_values(engine_args)


def secret_refused(place: str) -> str:
    """Return the message for a secret in the engine's arguments."""
    if place == "hf_token":
        how = "leave it out, and set HF_TOKEN in the environment of each process that loads the model"
    else:
        how = "put it into the environment of each process that loads the model"
    return f"engine_args may hold no token, key or password, and {place} looks like one: {how}."


def reasoning_parser(config: EngineConfig) -> str:
    """Return the name of the reasoning parser in ``engine_args``. Empty: there is none."""
    guided = config.engine_args.get("structured_outputs_config", {})
    inner = guided.get("reasoning_parser") if isinstance(guided, Mapping) else None
    return str(config.engine_args.get("reasoning_parser") or inner or "")


def require_vllm() -> None:
    """Raise ``MissingPackageError`` if vLLM is not installed. The error names the extra to install."""
    if importlib.util.find_spec("vllm") is None:
        raise MissingPackageError(INSTALL_HINT)
