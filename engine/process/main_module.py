"""The main module of the script that this process runs: which processes need it, and scripts that run twice."""

from __future__ import annotations

import multiprocessing
import pickletools
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from daft_vllm.errors import EngineStartError

_MAIN_PATH = "init_main_from_path"


def without_main(preparation: Mapping[str, Any], task: bytes) -> dict[str, Any]:
    """Return what ``multiprocessing`` tells a new process, without the script's main module if that isn't needed.

    By default each new process imports it. So a script would need ``if __name__ == "__main__":``, and could not come
    from standard input. It is needed if the process gets a reference to something that the script defines, or if the
    script, or what it imports, has registered a model with vLLM.

    Args:
        preparation: from ``multiprocessing.spawn.get_preparation_data``.
        task: what the process gets to run, pickled.
    """
    path = preparation.get(_MAIN_PATH)
    if (path is None or Path(path).is_file()) and (_refers_to_main(task) or _registers_models()):
        return dict(preparation)
    return {name: value for name, value in preparation.items() if not name.startswith("init_main")}


def _registers_models() -> bool:
    """Whether this process has registered a model with vLLM that a new process lacks: not vLLM's, not a plugin's."""
    registry = sys.modules.get("vllm.model_executor.models.registry")
    if registry is None:
        return False
    plugins = {entry.module.split(".")[0] for entry in entry_points(group="vllm.general_plugins")}
    models = registry.ModelRegistry.models.values()
    modules = [getattr(model, "module_name", None) or model.model_cls.__module__ for model in models]
    return any(module.split(".")[0] not in {"vllm", *plugins} for module in modules)


def _refers_to_main(task: bytes) -> bool:
    """Whether a pickle names the main module. A pickle inside it is vLLM's own, which has what it needs by value."""
    return any(
        isinstance(argument, str) and argument.split(" ")[0] == "__main__"
        for _, argument, _ in pickletools.genops(task)
    )


def refuse_process() -> None:
    """Refuse an engine in a process that can't have one: it only imports the script, or may not start processes.

    Raises:
        EngineStartError: another process started this one, and the script lacks ``if __name__ == "__main__":``; or this
            is a worker of ``multiprocessing.Pool``, or another daemon.
    """
    process = multiprocessing.current_process()
    if getattr(process, "_inheriting", False):
        script = getattr(sys.modules.get("__mp_main__"), "__file__", None) or sys.argv[0]
        raise EngineStartError(
            f"the script {script} runs a second time, in a process that it has started and that imports it. "
            'Write `if __name__ == "__main__":` above the lines that run the query, and indent them.'
        )
    if process.daemon:
        raise EngineStartError(
            "vLLM starts processes, and a daemon of multiprocessing, such as a worker of multiprocessing.Pool, may "
            "not: use concurrent.futures.ProcessPoolExecutor, or a multiprocessing.Process with daemon=False."
        )
