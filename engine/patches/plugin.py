"""The vLLM plugin: what daft-vllm adds to vLLM's own processes."""

from __future__ import annotations

import os
import sys
import threading

from daft_vllm.engine.patches.leftovers import name_leftovers
from daft_vllm.engine.setup.guardian import OWNER_PID, exit_with_parent
from daft_vllm.engine.setup.log import mark_own_warnings


def register() -> None:
    """Called by vLLM in each of its processes. Does nothing outside an engine of daft-vllm."""
    if OWNER_PID not in os.environ:
        return
    exit_with_parent()
    from daft_vllm.engine.patches.registry import apply_patch

    if os.environ[OWNER_PID] != str(os.getpid()):
        mark_own_warnings()
        _lock_bars_by_threads()
        apply_patch("leftovers", name_leftovers)
    if "vllm.v1.engine.core" not in sys.modules:  # this process is not the core's
        return
    from daft_vllm.engine.drafts.changes import change_sampler
    from daft_vllm.engine.patches.cpu.adapter_ops import fix_adapter_ops
    from daft_vllm.engine.patches.either_backend import register_backend
    from daft_vllm.engine.patches.whole_answers import send_whole_answers

    apply_patch("either_backend", register_backend)
    apply_patch("adapter_ops", fix_adapter_ops)
    apply_patch("whole_answers", send_whole_answers)
    apply_patch("drafts", change_sampler)


def _lock_bars_by_threads() -> None:
    """Let tqdm lock its bars by threads only.

    Its own lock is a semaphore too, for bars of several processes. It lives as long as the process. If the process is
    killed, Python's resource tracker warns on the user's screen of a leaked semaphore.
    """
    from tqdm import tqdm

    tqdm.set_lock(threading.RLock())
