"""Says why vLLM did not start, or died: from its log, and from how its process ended."""

from __future__ import annotations

import os
import re
import signal

from pydantic import ValidationError

from daft_vllm.secrets import is_secret_name, without_secrets

MAX_CAUSES = 3
MAX_CHARACTERS = 600
"""How much of each cause is shown."""
MAX_LAST_LINES = 5
"""How many lines are shown of a log without an exception."""

_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_PREFIX = re.compile(r"^\(\S+ pid=\d+\) (?:[A-Z]+ \S+ \S+ \[\S+\] ?)?")
"""What vLLM puts before each line of its log: ``(EngineCore pid=7) ERROR 11-30 04:08:45 [core.py:1] ``."""
_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Failure)(?:$|: )")
_FATAL = re.compile(r"^(?:Fatal Python error: |terminate called |\s*what\(\): |CUDA error: |Segmentation fault)")
_WORKER = re.compile(r"Worker proc \S+ died unexpectedly \(exit code: (-?\d+)\)")
_OURS = re.compile(r"^daft_vllm\.errors\.\w+: ")
_OF_PYDANTIC = re.compile(r" \[type=\w+, input_value=.*$")
"""What pydantic writes behind what is wrong: the start of the value, and where to read on."""
_NO_CAUSE = re.compile(r"[Ss]ee (?:root cause|stack trace)|^(?:SystemExit|KeyboardInterrupt)|died unexpectedly")
"""Exceptions that only say that there was another one."""

_QUOTED = re.compile(r"'([^']+)'")
_READ_BY_VLLM = ("VLLM_", "OMP_", "CUDA_", "NCCL_", "GLOO_", "HF_")
"""Prefixes of the names of environment variables that an error may be about."""

_SIGNALS = {
    signal.SIGKILL: "The kernel does this when memory runs out: use a smaller model, lower max_model_len or "
    "kv_cache_memory_bytes in engine_args, or give the machine or container more memory.",
    signal.SIGBUS: "This happens when shared memory is full: give the container more (docker run --shm-size=8g).",
    signal.SIGILL: "The CPU lacks an instruction that this build of vLLM uses.",
}
_MEMORY = re.compile(
    r"out of memory|outofmemory|memoryerror|kv cache|(?:free|available) memory"
    r"|bad_alloc|(?:can't|cannot) allocate memory"
)
_ADVICE = (
    (
        re.compile(r"requested memory for kv"),
        "Lower kv_cache_memory_bytes in engine_args, or VLLM_CPU_KVCACHE_SPACE if you have set it.",
    ),
    (
        re.compile(r"no available memory for the cache blocks|(?:larger|more) than the available kv cache memory"),
        "Lower max_model_len in engine_args, or give the KV cache more: raise kv_cache_memory_bytes there, or on a GPU "
        "gpu_memory_utilization.",
    ),
    (
        _MEMORY,
        "Lower max_model_len or gpu_memory_utilization in engine_args, or use more GPUs or a smaller model.",
    ),
    (
        re.compile(r"trust_remote_code"),
        'The model comes with Python code of its own. If you trust it, pass engine_args={"trust_remote_code": True}.',
    ),
    (
        re.compile(r"cannot find any model weights"),
        "Weights are read from safetensors only. If there are pickles (.bin, .pt), and you trust them, pass "
        'engine_args={"load_format": "hf"}.',
    ),
    (re.compile(r"gated|\b401\b"), "Accept the model's licence on the hub and set HF_TOKEN."),
    (
        re.compile(r"can't get attribute '.*' on <module '__main__'"),
        "Put it into a module of its own: vLLM's processes can't import it from standard input, -c, or a notebook.",
    ),
    (
        re.compile(r"longer than \d+ characters \(sizeof\(sockaddr_un"),
        "Set VLLM_RPC_BASE_PATH to a folder with a short name, /tmp for example: vLLM's sockets are there.",
    ),
    (
        re.compile(r"read-only file system|permission denied: '[^']*(?:cache|config)"),
        "Set HOME, HF_HOME, VLLM_CACHE_ROOT and TMPDIR to folders that this user can write.",
    ),
    (re.compile(r"no space left on device"), "Free disk space, or set HF_HOME and VLLM_CACHE_ROOT to another disk."),
    (
        re.compile(r"incompleteheader|header ?too ?(?:large|small)|metadataincompletebuffer|invalidheader"),
        "A file of weights is damaged or cut off: download the model again.",
    ),
)


def causes(log: str) -> list[str]:
    """Return the exceptions in a log, the first ones first, without those that only point to another one.

    Returns:
        at most ``MAX_CAUSES``, of at most ``MAX_CHARACTERS`` each.
    """
    found: dict[str, None] = {}
    lines = [_PREFIX.sub("", _COLOUR.sub("", line)).rstrip() for line in log.splitlines()]
    for number, line in enumerate(lines):
        if not (_EXCEPTION.match(line) or _FATAL.match(line)) or _NO_CAUSE.search(line):
            continue
        if line.endswith(":") or "validation error" in line:  # what is wrong follows
            line = " ".join([line, *(more.strip() for more in lines[number + 1 : number + 4] if more.strip())])
            line = _OF_PYDANTIC.sub("", line)
        found.setdefault(line.strip()[:MAX_CHARACTERS])
    ours = [_OURS.sub("", cause) for cause in found if _OURS.match(cause)]
    return ours[:1] or list(found)[:MAX_CAUSES]


def start_error(model: str, error: Exception, log: str, exit_code: int | None, log_name: str) -> str:
    """Return the message for a start that failed: the cause, what to do, and where the log is.

    Args:
        model: the model's name.
        error: what vLLM raised.
        log: what vLLM's processes wrote.
        exit_code: of vLLM's core, if it has ended.
        log_name: where the log is.
    """
    text = _text_of(error)
    if _NO_CAUSE.search(text):
        text = _cause(log, exit_code) or last_lines(log) or text
    found = (f"vLLM did not start with model {model!r}: {text}", _variables(text), _advice(text), _where(log_name))
    return without_secrets("\n".join(filter(None, found)))


def died_of(log: str, exit_code: int | None, log_name: str) -> str:
    """Return why vLLM died, as far as it is known, what to do, and where the log is. Arguments as ``start_error``."""
    text = _cause(log, exit_code) or "Its log doesn't say why."
    return without_secrets(" ".join(filter(None, (text, _advice(text), _where(log_name)))))


def _text_of(error: Exception) -> str:
    """Return an error's text. Of one by pydantic: each field and what is wrong with it, without the object around."""
    if isinstance(error, ValidationError):
        found = [(".".join(map(str, one["loc"])), one["msg"].removeprefix("Value error, ")) for one in error.errors()]
        return "; ".join(f"{field}: {wrong}" if field else wrong for field, wrong in found[:MAX_CAUSES])
    return str(error).strip() or type(error).__name__


def _where(log_name: str) -> str:
    return f"The log of vLLM is {log_name}."


def _cause(log: str, exit_code: int | None) -> str:
    worker = _WORKER.search(log)
    endings = [how_it_ended("core", exit_code), how_it_ended("worker", int(worker[1])) if worker else None]
    found = "\n".join(filter(None, (*endings, *causes(log))))
    if not found and "WorkerProc initialization failed" in log:
        found = (
            "A worker ended without an error. The kernel ends a process in this way when memory runs out: use a "
            "smaller model, lower max_model_len or gpu_memory_utilization in engine_args, or add memory."
        )
    return found


def last_lines(log: str) -> str:
    """Return the last lines of a log, joined."""
    lines = [_PREFIX.sub("", _COLOUR.sub("", line)).strip() for line in log.splitlines()]
    return " / ".join([line for line in lines if line][-MAX_LAST_LINES:])[:MAX_CHARACTERS]


def how_it_ended(process: str, exit_code: int | None) -> str | None:
    """Return what an exit code says about the cause. None: nothing.

    Args:
        process: "core" or "worker".
        exit_code: as ``multiprocessing`` has it: negative for a signal. None: unknown, or the process runs.
    """
    if exit_code is None or exit_code >= 0 or -exit_code in (signal.SIGTERM, signal.SIGINT):
        return None
    name = signal.Signals(-exit_code).name if -exit_code in set(signal.Signals) else "unknown"
    ended = f"vLLM's {process} was killed by signal {-exit_code} ({name})."
    advice = next((text for number, text in _SIGNALS.items() if number == -exit_code), "")
    return f"{ended} {advice}".strip()


def _variables(text: str) -> str | None:
    """Return which environment variables have a value that an error quotes without their name. None: no such one."""
    quoted = set(_QUOTED.findall(text))
    names = [
        f"{name}={value}"
        for name, value in os.environ.items()
        if name.startswith(_READ_BY_VLLM) and not is_secret_name(name) and name not in text and value in quoted
    ]
    return f"The value comes from the environment: {', '.join(names)}." if names else None


def _advice(text: str) -> str | None:
    """Return what to do about a cause. None: nothing is known."""
    lowered = text.lower()
    return next((hint for pattern, hint in _ADVICE if pattern.search(lowered)), None)
