"""The main module of the script that this process runs: which processes need it, and scripts that run twice."""

from __future__ import annotations

import multiprocessing
import pickletools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from daft_vllm.errors import EngineStartError

_MAIN_PATH = "init_main_from_path"


def without_main(preparation: Mapping[str, Any], task: bytes) -> dict[str, Any]:
    """Return what ``multiprocessing`` tells a new process, without the script's main module if that isn't needed.

    By default each new process imports it. So a script would need ``if __name__ == "__main__":``, and could not come
    from standard input. It is needed if the process gets a reference to something that the script defines, or if the
    script registers a model with vLLM.

    Args:
        preparation: from ``multiprocessing.spawn.get_preparation_data``.
        task: what the process gets to run, pickled.
    """
    path = Path(preparation.get(_MAIN_PATH, ""))
    registers = path.is_file() and b"ModelRegistry" in path.read_bytes()
    if registers or (_refers_to_main(task) and (path.is_file() or _MAIN_PATH not in preparation)):
        return dict(preparation)
    return {name: value for name, value in preparation.items() if not name.startswith("init_main")}


def _refers_to_main(task: bytes) -> bool:
    """Whether a pickle names the main module. A pickle inside it is vLLM's own, which has what it needs by value."""
    return any(
        isinstance(argument, str) and argument.split(" ")[0] == "__main__"
        for _, argument, _ in pickletools.genops(task)
    )


def refuse_in_import() -> None:
    """Refuse an engine in a process that only imports the script, because another process started it.

    Raises:
        EngineStartError: this is such a process, so the script lacks ``if __name__ == "__main__":``.
    """
    if not getattr(multiprocessing.current_process(), "_inheriting", False):
        return
    script = getattr(sys.modules.get("__mp_main__"), "__file__", None) or sys.argv[0]
    raise EngineStartError(
        f"the script {script} runs a second time, in a process that it has started and that imports it. "
        'Write `if __name__ == "__main__":` above the lines that run the query, and indent them.'
    )
