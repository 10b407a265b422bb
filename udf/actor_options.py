"""``ray_options``: which of Ray's options for actors a query may have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from daft_vllm.errors import OptionError, suggest

_OURS = {
    "max_concurrency": "daft-vllm sets how many batches an engine has. The number of engines is another option",
    "num_gpus": "write gpus=",
    "memory": "Daft 0.7 takes none for an actor: ask for a resource of your own, ray_options={'resources': {...}}",
    "name": "there are several actors, which Daft names",
    "get_if_exists": "an actor of another query would answer",
    "lifetime": "Daft ends the actors with the query",
    "num_returns": "it is for tasks",
}
"""Names that are refused, and why or what to write."""
_RUNTIME_ENV = ("conda",)
"""What Daft 0.7 takes of a ``runtime_env``: ``validate_and_normalize_ray_options``, ``daft/runners/ray_compat.py``."""


def check_ray_options(options: Mapping[str, Any]) -> None:
    """Raise ``OptionError`` if Ray or Daft doesn't take these options for an actor. Their values are not shown.

    Ray checks the values if it is installed. If not, no query can run on it.
    """
    for name, why in _OURS.items():
        if name in options:
            raise OptionError(f"ray_options can't have {name!r}: {why}.")
    env = options.get("runtime_env")
    if isinstance(env, Mapping) and (others := sorted(str(name) for name in {*env} - {*_RUNTIME_ENV})):
        raise OptionError(
            f"ray_options: Daft 0.7 takes nothing but conda in a runtime_env, and this one has {', '.join(others)}. "
            "Give that to the whole job: ray.init(runtime_env={...}), or ray job submit --runtime-env-json."
        )
    try:
        import ray
    except ImportError:
        return
    for name, value in options.items():
        if problem := _refused(ray, str(name), dict(value) if isinstance(value, Mapping) else value):
            raise OptionError(f"ray_options: {problem}")


def _refused(ray: Any, name: str, value: Any) -> str:
    """Return why Ray refuses an option, or an empty text. Ray's own words may have the value."""

    class Actor:
        pass

    def taken(**options: Any) -> str:
        try:
            ray.remote(**options)(Actor)
        except (TypeError, ValueError) as e:
            return str(e) or type(e).__name__
        return ""

    if not (said := taken(**{name: value})):
        return ""
    if "Invalid option keyword" in said:
        known = said.partition("[")[2].replace("'", "").rstrip("].").split(", ")
        return f"Ray has no option {name!r} for actors.{suggest(name, known)}"
    return f"Ray takes no {type(value).__name__} like this one for {name!r}: ActorClass.options in its documentation."
