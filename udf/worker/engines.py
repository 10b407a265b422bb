"""The engines of this process: opened on first use, and shared by all expressions with the same config."""

from __future__ import annotations

import contextlib
import threading
from typing import NamedTuple

from daft_vllm.engine import EngineConfig, OfflineEngine
from daft_vllm.engine.process.core import GRACE_SECONDS
from daft_vllm.engine.setup.devices.claims import GpuClaim
from daft_vllm.engine.setup.devices.driver import visible_gpus
from daft_vllm.engine.setup.environment import START_LOCK
from daft_vllm.engine.setup.log import log_file
from daft_vllm.udf.preflight.load import check_fits, with_card_settings


class _Open(NamedTuple):
    engine: OfflineEngine
    claim: GpuClaim | None

    def close(self, grace: float = GRACE_SECONDS) -> None:
        self.engine.close(grace)
        if self.claim is not None:
            self.claim.release()


_lock = threading.Lock()
_open: dict[str, _Open] = {}


def shared_engine(config: EngineConfig, *, check_chat_template: bool, claim_gpus: bool = False) -> OfflineEngine:
    """Return this process's engine for ``config``. The model is loaded if no engine for ``config`` is open.

    An engine that died is replaced. Idle engines with another config are closed first: two models seldom fit into
    memory. Blocks other callers while a model loads.

    Args:
        config: how to start the engine.
        check_chat_template: refuse a model without a chat template.
        claim_gpus: take free GPUs of this machine for the engine, because nothing else assigns GPUs.

    Raises:
        DeviceError: too few GPUs are free.
        Everything that ``check_fits`` and ``OfflineEngine`` raise.
    """
    key = repr(config)
    with _lock:
        if key in _open and not _open[key].engine.is_over:
            return _open[key].engine
        for other, idle in list(_open.items()):
            stats = idle.engine.stats()
            if idle.engine.is_over or stats.pending + stats.in_flight == 0:
                idle.close()
                del _open[other]
        with START_LOCK:
            claim = GpuClaim(config.gpus, visible_gpus()) if claim_gpus and config.gpus > 0 else None
            try:
                with claim.visible() if claim is not None else contextlib.nullcontext():
                    config = with_card_settings(config)  # those of the card that was claimed
                    check_fits(config)
                    engine = OfflineEngine(config, check_chat_template=check_chat_template)
            except BaseException:
                if claim is not None:
                    claim.release()
                raise
        _open[key] = _Open(engine, claim)
        return engine


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
