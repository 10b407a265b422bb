"""The engines of this process: opened on first use, and shared by all expressions with the same config."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple

from daft_vllm.engine import EngineConfig, OfflineEngine
from daft_vllm.engine.process.core import GRACE_SECONDS
from daft_vllm.engine.setup.devices.claims import GpuClaim
from daft_vllm.engine.setup.devices.driver import visible_gpus
from daft_vllm.engine.setup.devices.room import check_room_here
from daft_vllm.engine.setup.environment import START_LOCK, default_engine_args, environment_variables
from daft_vllm.engine.setup.log import log_file
from daft_vllm.engine.setup.openmp import divided_cores
from daft_vllm.udf.preflight.load import check_fits, with_card_settings
from daft_vllm.udf.preflight.memory import cpu_cache_bytes


class _Open(NamedTuple):
    engine: OfflineEngine
    claims: list[GpuClaim]

    def close(self, grace: float = GRACE_SECONDS) -> None:
        self.engine.close(grace)
        for claim in self.claims:
            claim.release()


_CHANGEABLE: Mapping[str, Any] = {
    field.name: field.default
    for field in fields(EngineConfig)
    if field.name in ("truncate_prompt_tokens", "truncation_side", "stall_timeout", "max_restarts")
}
"""Settings that can be changed without loading the model again, with their defaults."""

_lock = threading.Lock()
_open: dict[str, _Open] = {}


def shared_engine(
    config: EngineConfig, *, check_chat_template: bool, claim_gpus: bool = False, engines: int = 1
) -> OfflineEngine:
    """Return this process's engine for ``config``. The model is loaded if no engine for ``config`` is open.

    Configs that differ only in how prompts are cut, in ``stall_timeout`` or ``max_restarts`` share an engine. Of the
    last two it has those that were asked for last. An engine that died is replaced. Idle engines with another config
    are closed first: two models seldom fit into memory. One that answers rows of another query stays open beside the
    new one, until a further engine is opened when it is idle. Blocks other callers while a model loads.

    Args:
        config: how to start the engine.
        check_chat_template: refuse a model without a chat template.
        claim_gpus: take free GPUs of this machine for the engine, because nothing else assigns GPUs.
        engines: how many vLLMs answer its rows. Each has ``config.gpus`` GPUs, or a part of the CPU's cores.

    Raises:
        DeviceError: too few GPUs are free, or there are fewer cores than engines.
        Everything that ``check_fits`` and ``OfflineEngine`` raise.
    """
    key = f"{replace(config, **_CHANGEABLE)!r} x {engines}"
    with _lock:
        if key in _open and not _open[key].engine.is_over:
            engine = _open[key].engine
            engine.set_limits(config.stall_timeout, config.max_restarts)
            return engine
        for other, idle in list(_open.items()):
            stats = idle.engine.stats()
            if idle.engine.is_over or stats.pending + stats.in_flight == 0:
                idle.close()
                del _open[other]
        if claim_gpus:  # with a store it is not checked earlier
            check_room_here(engines, config.gpus)
        claims: list[GpuClaim] = []
        with START_LOCK:
            try:
                if claim_gpus and config.gpus > 0:
                    for _ in range(engines):
                        claims.append(GpuClaim(config.gpus, visible_gpus()))
                variables = [claim.variables() for claim in claims] if config.gpus else divided_cores(engines)
                variables = variables or [{}]  # somebody else assigns GPUs
                with environment_variables(variables[0]):
                    config = with_card_settings(config)  # those of the card that was claimed
                    check_fits(config, engines)
                    engine = OfflineEngine(
                        _divided(config, engines),
                        variables=variables,
                        check_chat_template=check_chat_template,
                    )
            except BaseException:
                for claim in claims:
                    claim.release()
                raise
        _open[key] = _Open(engine, claims)
        return engine


def _divided(config: EngineConfig, engines: int) -> EngineConfig:
    """Return the config with a part of the machine's memory for the KV cache of each engine on the CPU."""
    if config.gpus or engines == 1 or cpu_cache_bytes(config.engine_args) is not None:
        return config
    whole = default_engine_args(cpu=True)["kv_cache_memory_bytes"]
    assert isinstance(whole, int)
    return replace(config, engine_args={**config.engine_args, "kv_cache_memory_bytes": whole // engines})


def open_engines() -> list[OfflineEngine]:
    """Return the engines that are open in this process. One that is being started is not among them."""
    return [opened.engine for opened in list(_open.values())]


def close_engines() -> None:
    """Close every engine of this process. This frees their memory and their GPUs."""
    _close_all(GRACE_SECONDS)


def kill_engines() -> None:
    """Close every engine at once, without waiting for vLLM to end by itself, and remove the log. Nothing may follow."""
    _close_all(0.0)
    log_file().remove()


def _close_all(grace: float) -> None:
    with _lock:
        for opened in _open.values():
            opened.close(grace)
        _open.clear()
