"""The engine of this process: opened on first use, reused by every expression that wants the same one."""

from __future__ import annotations

import threading

from daft_vllm.engine import EngineConfig, OfflineEngine

_lock = threading.Lock()
_open: dict[str, OfflineEngine] = {}


def shared_engine(config: EngineConfig, *, check_chat_template: bool) -> OfflineEngine:
    """Return this process's engine for ``config``, loading the model if that was not done yet.

    An engine that died is replaced. Idle engines with another config are closed first: two models seldom fit. Blocks
    other callers while a model loads.

    Raises:
        Everything that ``OfflineEngine`` raises.
    """
    key = repr(config)
    with _lock:
        engine = _open.get(key)
        if engine is not None and not engine.is_over:
            return engine
        for other, idle in list(_open.items()):
            stats = idle.stats()
            if idle.is_over or stats.pending + stats.in_flight == 0:
                idle.close()
                del _open[other]
        engine = OfflineEngine(config, check_chat_template=check_chat_template)
        _open[key] = engine
        return engine


def close_engines() -> None:
    """Close every engine of this process."""
    with _lock:
        for engine in _open.values():
            engine.close()
        _open.clear()
