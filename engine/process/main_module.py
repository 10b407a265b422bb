"""The main module of the script that this process runs: which processes need it, and scripts that run twice."""

from __future__ import annotations

import multiprocessing
import sys
from types import FunctionType, ModuleType

from daft_vllm.errors import EngineStartError


def needs_main(task: bytes) -> bool:
    """Whether a new process of vLLM has to import the script's main module, as ``multiprocessing`` lets it by default.

    It has to if it gets something that the script defines (a class in ``engine_args``). It also does if the script uses
    vLLM by itself, because it may register a model or a parser.

    Args:
        task: what the process gets, pickled.
    """
    return b"__main__" in task or any(_of_vllm(value) for value in vars(sys.modules["__main__"]).values())


def _of_vllm(value: object) -> bool:
    if isinstance(value, ModuleType):
        name = value.__name__
    elif isinstance(value, (type, FunctionType)):
        name = value.__module__ or ""
    else:
        return False
    return name.split(".")[0] == "vllm"


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
