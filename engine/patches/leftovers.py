"""Names what vLLM's processes leave behind when they are killed, so that the next engine can remove it.

vLLM 0.32 writes a file ``vllm_dist_*`` for torch into the temporary folder. With several workers it also has shared
memory (250 MB for each worker) and semaphores in ``/dev/shm``, under names that say nothing. All of that stays when the
processes are killed together with Python's resource tracker, as by a scheduler that ends a job. Here the file goes into
the folder of vLLM's sockets, and the other names begin with that folder's. The engine's process holds the folder;
``folders.remove_unheld`` removes what belongs to a folder that nobody holds any more.
"""

from __future__ import annotations

import os
import secrets
import sys
from multiprocessing import process, shared_memory
from typing import Any

from daft_vllm.engine.setup.environment import engine_folder


def name_leftovers() -> None:
    """Let this process, one of vLLM's, use such names. Does nothing if the user has chosen vLLM's folder."""
    folder = engine_folder()
    if folder is None:
        return
    name = os.path.basename(folder)

    def file_store() -> str:
        return f"file://{folder}/vllm_dist_{secrets.token_hex(16)}"

    from vllm.utils import network_utils

    theirs = network_utils.get_file_store_init_method
    modules = [network_utils, *(sys.modules.get(f"vllm.v1.executor.{kind}proc_executor") for kind in ("uni", "multi"))]
    for module in modules:
        if getattr(module, "get_file_store_init_method", None) is theirs:
            module.get_file_store_init_method = file_store
    memory: Any = shared_memory
    if not callable(memory._make_filename):
        raise AttributeError("multiprocessing.shared_memory._make_filename")
    memory._make_filename = lambda: f"/{name}-{secrets.token_hex(8)}"
    current: Any = process.current_process()
    current._config["semprefix"] = f"/{name}"
