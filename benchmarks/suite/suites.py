"""The suites: the model, engine arguments and numbers of rows for each device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.suite.vocabulary import model_config
from benchmarks.suite.workloads import PRESSURE_ROWS_PER_PREFIX, PRESSURE_SHARED
from daft_vllm.engine.setup.environment import cpu_has_bfloat16
from daft_vllm.model_configs import resolve_model

GPU_BLOCK_SIZE = 16
"""vLLM's default on GPUs, for suites that leave ``block_size`` to it."""

PRESSURE_MODEL_LEN = 1024
COLD = "cold"
"""The workload that times a whole process, from start to exit."""
# daft-vllm's own defaults, for every arm: so all use the same grammar, and no backend replaces another.
STRUCTURED_OUTPUTS = {"backend": "xgrammar", "disable_any_whitespace": True}
# The same for all arms (`ARMS` says what one adds): no usage reports, no progress bars, no logs of the steps.
ENVIRONMENT = {
    "DAFT_ANALYTICS_ENABLED": "0",
    "DAFT_PROGRESS_BAR": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}


@dataclass(frozen=True)
class Suite:
    """The model, settings and sizes that a device is measured with.

    Args:
        name: the name that ``--suite`` takes.
        model: a folder, or a name on the Hugging Face hub.
        engine_args: arguments of vLLM's engine, the same in every arm.
        rows: numbers of rows by workload, small and large; both are run and their difference gives the marginal rate.
            ``cold`` has only one.
        environment: environment variables of every arm's process.
        gpus: GPUs of the engine. 0: it runs on the CPU.
    """

    name: str
    model: str
    engine_args: Mapping[str, Any]
    rows: Mapping[str, tuple[int, ...]]
    environment: Mapping[str, str] = field(default_factory=dict)
    gpus: int = 0

    @property
    def block_size(self) -> int:
        """Tokens of a KV-cache block."""
        return int(self.engine_args.get("block_size", GPU_BLOCK_SIZE))

    def engine_args_for(self, workload: str, rows: int) -> dict[str, Any]:
        """Return the engine arguments of one job: the suite's, with less KV cache and context for ``pressure``."""
        args = dict(self.engine_args)
        if workload == "pressure":
            args["max_model_len"] = PRESSURE_MODEL_LEN
            args["kv_cache_memory_bytes"] = self.pressure_tokens(rows) * self.kv_bytes_per_token()
        return args

    def pressure_tokens(self, rows: int) -> int:
        """Return the tokens that the cache holds in ``pressure``: a quarter of the tokens of all distinct prefixes.

        vLLM refuses a cache in which the longest possible sequence doesn't fit, and keeps one block for itself.
        """
        prefixes = -(-rows // PRESSURE_ROWS_PER_PREFIX)
        return max(prefixes * PRESSURE_SHARED // 4, PRESSURE_MODEL_LEN + self.block_size)

    def kv_bytes_per_token(self) -> int:
        """Return the bytes of one token in the KV cache: a key and a value per layer and KV head."""
        config = model_config(self.model)
        head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        dtype = self.engine_args.get("dtype") or "bfloat16"
        bytes_per_value = 4 if dtype in ("float", "float32") else 2
        return int(config["num_hidden_layers"] * 2 * config["num_key_value_heads"] * head * bytes_per_value)

    def with_rows(self, rows: Mapping[str, tuple[int, ...]]) -> Suite:
        """Return this suite with other numbers of rows in the workloads that ``rows`` names."""
        return replace(self, rows={**self.rows, **rows})


def suite(name: str, model: str | None = None, dtype: str | None = None) -> Suite:
    """Return the suite of a device, with another model or type of weights if ``model`` or ``dtype`` is given.

    Raises:
        KeyError: there is no such suite.
    """
    found = _suites()[name]()
    if model:
        found = replace(found, model=resolve_model(model))
    return replace(found, engine_args={**found.engine_args, "dtype": dtype}) if dtype else found


def suite_names() -> list[str]:
    """Return the names of the suites."""
    return list(_suites())


def _suites() -> dict[str, Callable[[], Suite]]:
    return {"cpu": _cpu, "l4": _l4, "a100": _a100, "h100": _h100, "h200": _h200}


def _cpu() -> Suite:
    args: dict[str, Any] = {
        "max_model_len": 2048,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 2048,
        "enforce_eager": True,
        "block_size": 32,
        "kv_cache_memory_bytes": 2 << 30,
        "structured_outputs_config": STRUCTURED_OUTPUTS,
    }
    # Two cores do 300 prompt tokens/s and 250 output tokens/s with AVX2 alone, in float32, and ten times that with AMX.
    scale = 4
    if not cpu_has_bfloat16():
        args["dtype"] = "float32"
        scale = 1
    # ``pressure`` needs more rows: a quarter of fewer prefixes would be less cache than two sequences need.
    sizes = {
        "blog": (8, 24),
        "instructions": (16, 48),
        "pressure": (32, 64),
        "nosharing": (8, 32),
        "skewed": (16, 64),
        "nested": (16, 64),
        "guided": (8, 32),
        "tiny": (128, 512),
        "table": (8, 16),
        "duplicates": (12, 48),
    }
    return Suite(
        name="cpu",
        model=resolve_model("smollm2-135m"),
        engine_args=args,
        # By default vLLM keeps one core free, which is half of a machine with two.
        environment={**ENVIRONMENT, "VLLM_CPU_NUM_OF_RESERVED_CPU": "0", "HF_HUB_OFFLINE": "1"},
        rows={workload: tuple(scale * rows for rows in sizes) for workload, sizes in sizes.items()} | {COLD: (256,)},
    )


def _gpu(name: str, model: str, scale: int, **engine_args: Any) -> Suite:
    args = {
        "max_model_len": 2048,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
        "gpu_memory_utilization": 0.9,
        "block_size": GPU_BLOCK_SIZE,
        "structured_outputs_config": STRUCTURED_OUTPUTS,
        **engine_args,
    }
    rows = {
        "blog": (1000, 4000),
        "instructions": (2000, 8000),
        "pressure": (1000, 4000),
        "nosharing": (1000, 4000),
        "skewed": (1000, 4000),
        "nested": (2000, 8000),
        "guided": (1000, 4000),
        "tiny": (5000, 20000),
        "table": (1000, 4000),
        "duplicates": (1000, 4000),
    }
    scaled: dict[str, tuple[int, ...]] = {COLD: (256,)}
    scaled |= {workload: (small * scale, large * scale) for workload, (small, large) in rows.items()}
    return Suite(name=name, model=model, engine_args=args, environment=dict(ENVIRONMENT), rows=scaled, gpus=1)


def _l4() -> Suite:
    return _gpu("l4", "Qwen/Qwen3-8B-FP8", scale=1)


def _a100() -> Suite:
    # No FP8 units: the weights are bfloat16.
    return _gpu("a100", "Qwen/Qwen3-8B", scale=2, max_num_seqs=512)


def _h100() -> Suite:
    return _gpu("h100", "Qwen/Qwen3-8B-FP8", scale=4, max_num_seqs=1024, max_num_batched_tokens=16384)


def _h200() -> Suite:
    # An H100 with more memory: the same settings, so that the two can be compared.
    return replace(_h100(), name="h200")
