"""LoRA adapters: checks their folders, downloads them, and sets the engine arguments that they need."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from daft_vllm.engine.setup.model_files.pickles import check_adapter_pickles
from daft_vllm.errors import ModelError, OptionError
from daft_vllm.wording import brief, shown

_RUNNING = 4
"""How many adapters may run in one step. Rows are sorted by adapter, so few run at once. Each takes GPU memory."""
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin", "adapter_model.pt")


def check_adapters(adapters: Mapping[str, str], engine_args: Mapping[str, Any]) -> None:
    """Raise ``ModelError`` if an adapter is given as a folder, and can't be loaded. Names on a hub are not checked.

    It can't be loaded if it is no adapter, or a pickle that ``engine_args`` don't allow.
    """
    for name, place in adapters.items():
        if not name or not isinstance(name, str) or not isinstance(place, str):
            raise OptionError(
                f"adapters maps each name to a folder, or to a name on the hub. Got "
                f"{name!r}: {shown(place) if isinstance(place, str) else type(place).__name__}."
            )
        path = Path(place).expanduser()
        local = path.is_absolute() or place.startswith((".", "~")) or place.count("/") > 1
        if local or path.is_dir() or (path.parts and Path(path.parts[0]).is_dir()):
            _rank(name, path)
            check_adapter_pickles(name, path, engine_args)


def download_adapters(adapters: Mapping[str, str]) -> dict[str, str]:
    """Return the folder of each adapter. Adapters on the hub are downloaded.

    Raises:
        ModelError: an adapter can't be downloaded.
    """
    found = {}
    for name, place in adapters.items():
        path = Path(place).expanduser()
        if not path.is_dir():
            from huggingface_hub import snapshot_download

            try:
                path = Path(snapshot_download(place))
            except Exception as e:
                raise ModelError(f"the adapter {name!r} can't be downloaded from {shown(place)}: {brief(e)}") from e
        found[name] = str(path)
    return found


def adapter_args(folders: Mapping[str, str], engine_args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of vLLM's engine that adapters need, without those in ``engine_args``.

    Raises:
        ModelError: a folder is no adapter, its weights are a pickle that ``engine_args`` don't allow, or its rank is
            too high.
    """
    if not folders:
        return {}
    for name, folder in folders.items():
        check_adapter_pickles(name, Path(folder), engine_args)
    from vllm.config.lora import MaxLoRARanks

    rank = max(_rank(name, Path(folder)) for name, folder in folders.items())
    possible = [allowed for allowed in get_args(MaxLoRARanks) if allowed >= rank]
    if not possible:
        raise ModelError(f"vLLM takes adapters of rank {max(get_args(MaxLoRARanks))} at most, one of these has {rank}.")
    given = engine_args.get("max_lora_rank")
    if given is not None and int(given) < rank:
        raise OptionError(f"max_lora_rank={given} is less than the rank of an adapter, {rank}: leave it out.")
    kept = int(engine_args.get("max_cpu_loras") or len(folders))
    running = int(engine_args.get("max_loras") or min(kept, _RUNNING))
    kept = max(kept, running)
    wanted = {"enable_lora": True, "max_lora_rank": min(possible), "max_loras": running, "max_cpu_loras": kept}
    return {name: value for name, value in wanted.items() if name not in engine_args}


def _rank(name: str, folder: Path) -> int:
    path = folder / "adapter_config.json"
    if not folder.is_dir():
        raise ModelError(f"there is no folder {shown(str(folder))} for the adapter {name!r}.")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise ModelError(f"the adapter {name!r} has no readable adapter_config.json in {str(folder)!r}: {e}") from None
    rank = config.get("r") if isinstance(config, Mapping) else None
    if not isinstance(rank, int) or config.get("peft_type", "LORA") != "LORA":
        raise ModelError(
            f"the adapter {name!r} in {str(folder)!r} is no LoRA adapter: its adapter_config.json has no r, or another "
            "peft_type."
        )
    if not any((folder / weights).is_file() for weights in _WEIGHTS):
        raise ModelError(f"the adapter {name!r} has no weights in {str(folder)!r}: one of {', '.join(_WEIGHTS)}.")
    return rank
