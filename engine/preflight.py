"""What can be found wrong before a model is loaded, in the process that will load it."""

from __future__ import annotations

from pathlib import Path

from daft_vllm.engine.config import EngineConfig, check_engine_args, require_vllm
from daft_vllm.engine.lowering import enforceable
from daft_vllm.engine.request import Constraint
from daft_vllm.errors import ModelError, SchemaError


def check_before_load(config: EngineConfig, constraint: Constraint | None) -> None:
    """Raise what a load of minutes would only end in.

    Raises:
        MissingPackageError: vLLM is not installed.
        OptionError: the installed vLLM does not know an engine argument.
        ModelError: the model is a folder that isn't there, or isn't a model's.
        SchemaError: xgrammar cannot enforce the constraint.
    """
    require_vllm()
    check_engine_args(config.engine_args)
    check_model_folder(config.model)
    if constraint is not None:
        check_constraint(constraint)


def check_model_folder(model: str) -> None:
    """Raise ``ModelError`` if ``model`` is meant as a folder and no model is in it; names on a hub pass."""
    path = Path(model).expanduser()
    looks_like_path = path.is_absolute() or model.startswith((".", "~")) or path.is_dir() or model.count("/") > 1
    if not looks_like_path:
        return
    if not path.is_dir():
        raise ModelError(
            f"there is no model folder {model!r}. Give the folder that holds the model's config.json, "
            "or a name on the Hugging Face hub such as 'HuggingFaceTB/SmolLM2-135M-Instruct'."
        )
    if not (path / "config.json").is_file():
        raise ModelError(f"the folder {model!r} holds no config.json: it is not a model in Hugging Face format.")


def check_constraint(constraint: Constraint) -> None:
    """Raise ``SchemaError`` for a JSON schema that xgrammar cannot enforce to the letter, with every reason.

    Raises:
        SchemaError: a keyword that no grammar enforces, with its place and what to write instead; a schema that nothing
            satisfies; one that xgrammar cannot compile.
    """
    if constraint.json_schema is None:
        return
    schema = enforceable(constraint.json_schema)
    import xgrammar

    try:
        xgrammar.Grammar.from_json_schema(schema, any_whitespace=False)
    except RuntimeError as e:
        raise SchemaError(f"xgrammar cannot compile the schema: {e}") from e
