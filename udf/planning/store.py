"""Opens the store of a query: notes what is asked, or compares it with what was asked before."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import daft

from daft_vllm.engine.store.identity import engine_identity, shown_identity
from daft_vllm.engine.store.keys import identity_digest
from daft_vllm.engine.store.manifest import open_folder
from daft_vllm.engine.store.remote import is_url, open_remote
from daft_vllm.errors import OptionError
from daft_vllm.model_configs import resolve_model
from daft_vllm.secrets import has_secrets
from daft_vllm.udf.options import PromptOptions
from daft_vllm.udf.worker.spec import PromptSpec
from daft_vllm.udf.worker.stored import StoreSpec


def with_store(spec: PromptSpec, options: PromptOptions, messages: Sequence[daft.Expression]) -> PromptSpec:
    """Return the spec with the store that the options name, if they name one. Its folder is made.

    Args:
        spec: what the workers get.
        options: the options of ``prompt()``.
        messages: the columns of the messages.

    Raises:
        OptionError: it is a URL with a secret.
        StoreError: it has the answers of a job that asked something else, or can't be made or reached.
    """
    if options.store is None:
        return spec
    if has_secrets(options.store):
        raise OptionError(
            "store is a URL without keys: put them into the environment of each process (AWS_ACCESS_KEY_ID and so on)."
        )
    place = options.store if is_url(options.store) else str(Path(options.store).expanduser().resolve())
    engine = engine_identity(replace(spec.engine, model=resolve_model(spec.engine.model)))
    asked = {
        "prompt": ", ".join(map(_shown, messages)),
        "system_message": spec.options.system_message,
        "examples": spec.examples or None,
        "return_format": spec.format.constraints or None,
        "described as": {name: text for name, text in spec.preambles.items() if text} or None,
        "thinking": spec.thinking,
        "tools": spec.toolbox,
        "chat_template_kwargs": dict(spec.chat_template_kwargs or {}) or None,
        "apply_chat_template": spec.options.apply_chat_template,
        **spec.sampling.model_dump(exclude_defaults=True),
        **dict.fromkeys(spec.row_options, "a column"),
        "row_key": None if options.row_key is None else _shown(options.row_key),
    }
    given = shown_identity({**engine, **{name: value for name, value in asked.items() if value is not None}})
    if is_url(place):
        open_remote(place, given, changed=options.store_changed)
    else:
        open_folder(Path(place), given, changed=options.store_changed)
    return replace(spec, store=StoreSpec(place, identity_digest(engine)))


def _shown(column: daft.Expression) -> str:
    """Return a column as text that is the same in each run. Daft numbers functions, and prints keys of a storage."""
    text = re.sub(r"-\d+-\d+(?=\()", "", str(column))
    if re.search(r"Config|PyObject|0x[0-9a-f]{6}", text):
        return ", ".join(sorted(set(re.findall(r"col\((.*?)\)", text)))) or "a function"
    return text
