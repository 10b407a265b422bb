"""The model of the benchmark: real weights from a folder, or random ones in a shape that is published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.suite.suites import Suite
from daft_vllm.model_configs import ModelConfig, derived_config, known_models, resolve_model
from daft_vllm.model_configs.memory import weight_bytes

SHAPE = "qwen3-8b"
"""The shape of the random model on a GPU: it fits onto each of the cards, and is a usual size."""
REAL = "smollm2-135m"
"""The real model of the CPU. Its tokenizer serves the random model: a package carries it, so no hub is needed."""
FP8 = "fp8_per_tensor"
"""vLLM's name for 8-bit weights made from 16-bit ones as they load. Its ``fp8`` takes only weights that are FP8."""
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")


@dataclass(frozen=True)
class CardModel:
    """A model, before anything of it is written.

    Args:
        name: what the page calls it.
        source: the folder with its weights, or the short name of the shape that random weights get.
        random: whether its weights are random.
        engine_args: engine arguments in addition to the suite's.
        why: why it is this one.
    """

    name: str
    source: str
    random: bool
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""

    def config(self) -> ModelConfig:
        """Return its numbers. A folder's are read by transformers, whose import takes seconds."""
        return known_models().get(self.source) or derived_config(self.source)

    def weights(self) -> int:
        """Return the bytes of its weights in the card's memory."""
        config = self.config()
        dtype = str(self.engine_args.get("dtype") or "bfloat16")
        return weight_bytes(
            config.parameters, config.architecture, dtype=dtype, quantization=self.engine_args.get("quantization")
        )


def choose_model(suite: Suite, model: str | None) -> CardModel:
    """Return the model of a run. Reads file names only.

    Args:
        suite: the device's suite.
        model: a folder with weights; a folder without, whose weights are then random; or the short name of a known
            model, whose shape the random weights get. None: the suite's.

    Raises:
        ValueError: there is no such folder or name.
    """
    dtype = {"dtype": suite.engine_args["dtype"]} if suite.engine_args.get("dtype") else {}
    if model is None and not suite.gpus:
        model = REAL
    if model == REAL:
        return CardModel(REAL, REAL, False, dtype, "real weights, which a Python package carries")
    dummy = {**dtype, "load_format": "dummy"}
    if model is not None and Path(model).is_dir():
        folder = str(Path(model).resolve())
        if any(next(Path(folder).glob(pattern), None) for pattern in _WEIGHTS):
            return CardModel(Path(folder).name, folder, False, dtype, "real weights, from --model")
        if (Path(folder) / "config.json").is_file():
            return CardModel(f"{Path(folder).name}, random weights", folder, True, dummy, "--model has no weights")
        raise ValueError(f"{model} has no config.json: give a model's folder")
    name = model or SHAPE
    if name not in known_models():
        raise ValueError(
            f"{name!r} is neither a folder nor a known model: nothing is downloaded with --minutes, so give a folder "
            f"with weights, or the name of a shape for random ones, {SHAPE} for example"
        )
    why = "random weights need no hub, and take as much time as trained ones"
    if suite.name == "l4" and model is None:
        # 15.3 GiB of 16-bit weights would leave the L4 a cache for 31 rows of the workload blog; 8 bits leave 113.
        fp8 = {**dummy, "quantization": FP8}
        return CardModel(f"{name}, random weights in FP8", name, True, fp8, f"{why}; in 16 bits they leave no cache")
    return CardModel(f"{name}, random weights", name, True, dummy, why)


def write_model(model: CardModel, out: Path) -> str:
    """Return the folder that vLLM loads; a random model's is written into ``out``. Imports transformers."""
    if not model.random:
        return resolve_model(model.source)
    if Path(model.source).is_dir():
        return model.source
    from benchmarks.parts.memory_plan import write_model as write_shape

    folder = out / "model"
    folder.mkdir(parents=True, exist_ok=True)
    return write_shape(model.source, folder)
