"""The options of ``prompt()`` as options of a command, made from ``PromptOptions`` and ``SamplingOptions``."""

from __future__ import annotations

import contextlib
import inspect
import json
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
import typer
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from typer.core import TyperCommand

from daft_vllm.cli.names import complete_goal, complete_model
from daft_vllm.cli.terminal import ELSEWHERE, engine_args_of, json_object
from daft_vllm.engine.requests.sampling import REFUSED, SamplingOptions
from daft_vllm.engine.setup.arg_types import vllm_engine_arg_names
from daft_vllm.errors import OptionError
from daft_vllm.udf.options import OPTION_NAMES, PromptOptions, option_default, option_help, option_type
from daft_vllm.udf.other_names import NOT_HERE, OTHER_NAMES

ARGUMENTS = "daft_vllm.arguments"
"""Where a command's context has its arguments as they were given."""
_INT32 = 2**31 - 1
_ALSO = {"system_message": "--system", "max_concurrency": "--engines"}
"""Second names."""
_COMPLETION = {"model": complete_model, "goal": complete_goal}


class PromptCommand(TyperCommand):
    """A command that knows what its options are called elsewhere, and suggests the nearest option for any other."""

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **kwargs: Any) -> Any:
        """Read the arguments. An unknown option is told with what to write."""
        given = list(args)
        try:
            context = super().make_context(info_name, args, *more, **kwargs)
            context.meta[ARGUMENTS] = given
            return context
        except Exception as e:
            name = getattr(e, "option_name", None)
            if type(e).__name__ != "NoSuchOption" or not name:
                raise
            near = getattr(e, "possibilities", None)
            advice = _instead(name.lstrip("-").replace("-", "_")) or (f"Did you mean {near[0]}?" if near else "")
            if advice:
                e.message, e.possibilities = f"No such option: {name}. {advice}", None  # type: ignore[attr-defined]
            raise


def _instead(name: str) -> str:
    """Return what to write in place of an option that there isn't, or an empty string."""
    meant = OTHER_NAMES.get(name, name)
    if meant in ELSEWHERE:
        return f"There is {ELSEWHERE[meant]}." if ELSEWHERE[meant].startswith("-") else f"It is {ELSEWHERE[meant]}."
    if meant in OPTION_NAMES or meant in SamplingOptions.model_fields:
        return f"Write --{meant.replace('_', '-')}."
    argument = re.match(r"engine_args=\{'(\w+)'", meant)
    if argument is not None or name in (vllm_engine_arg_names() or ()):
        return f"""Write --engine-args '{{"{argument[1] if argument else name}": ...}}'."""
    why = REFUSED.get(name) or NOT_HERE.get(name)
    return f"{why[0].upper()}{why[1:]}." if why and "return_format" not in why else "There is --schema." if why else ""


def with_prompt_options(
    command: Callable[..., None], *, without: tuple[str, ...] = (), only_sampling: bool = False
) -> Callable[..., None]:
    """Return a command that has an option for each option of ``prompt()`` too.

    Args:
        command: its parameter ``given`` gets the options that the user gave, by their names in ``prompt()``.
        without: names that the command has itself.
        only_sampling: leave out all but the sampling options. Their defaults are not shown: they are another command's.
    """
    own = [one for one in inspect.signature(command, eval_str=True).parameters.values() if one.name != "given"]
    elsewhere = [one.name for one in fields(PromptOptions)] if only_sampling else [*ELSEWHERE, *without]
    names = [one.name for one in fields(PromptOptions) if one.name not in elsewhere]
    sampling = list(SamplingOptions.model_fields)
    made = [_parameter(name, "Options of prompt()") for name in names]
    made += [_parameter(name, "Sampling options", show_default=not only_sampling) for name in sampling]

    def run(**values: Any) -> None:
        given = {name: values.pop(name) for name in (*names, *sampling)}
        command(**values, given={name: value for name, value in given.items() if value not in (None, [], ())})

    signature = inspect.Signature([one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*own, *made)])
    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in signature.parameters.values()}
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


def options_of(given: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return the options that the user gave as ``prompt()`` takes them, and ``more``.

    Raises:
        OptionError: a value can't be read.
    """
    return {**{name: _value(name, value) for name, value in given.items()}, **more}


def _parameter(name: str, panel: str, *, show_default: bool = True) -> inspect.Parameter:
    flag = f"--{name.replace('_', '-')}"
    kind, limits = _kind(option_type(name))
    flags = [f"{flag}/--no-{flag[2:]}"] if kind is bool else [flag, *([_ALSO[name]] if name in _ALSO else [])]
    default = option_default(name)
    more = {str: _text_hint(name), bool: ""}.get(kind, "May be repeated." if get_origin(kind) is list else "")
    made = typer.Option(
        *flags,
        help=f"{option_help(name)} {more}".strip(),
        show_default=False if default in (None, (), "") or not show_default else str(default),
        rich_help_panel=panel,
        autocompletion=_COMPLETION.get(name),
        **limits,
    )
    annotation: Any = Annotated[(kind | None, made)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _text_hint(name: str) -> str:
    if name == "engine_args":
        return """JSON: '{"dtype": "half"}', or @file of tune's."""
    if name == "chat_template":
        return "Or @file."
    return "JSON." if _is_json(name) else ""


def _types(annotation: Any) -> list[Any]:
    """Return what an option may be, without None and columns."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _types(args[0])
    if origin in (Union, types.UnionType):
        return [one for each in args for one in _types(each)]
    is_column = getattr(annotation, "__name__", "") == "Expression"
    return [] if annotation is types.NoneType or is_column else [annotation]


def _kind(annotation: Any) -> tuple[Any, dict[str, Any]]:
    """Return the type that typer gets for an option, and its limits."""
    found = _types(annotation)
    items = [_types(get_args(one)[0])[0] for one in found if get_origin(one) is list]
    if items and items[0] in (str, int):
        return list[items[0]], {}  # type: ignore[valid-type]
    if len(found) != 1 or (found[0] not in (bool, int, float, str) and get_origin(found[0]) is not Literal):
        return str, {}
    return found[0], _limits(annotation) if found[0] in (int, float) else {}


def _limits(annotation: Any) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    for one in _metadata(annotation):
        if isinstance(one, annotated_types.Ge):
            limits["min"] = one.ge
        elif isinstance(one, annotated_types.Le):
            limits["max"] = one.le
    # The help shows limits. Those of the integers of 32 and 64 bits help nobody; they are checked with the options.
    return {name: limit for name, limit in limits.items() if abs(limit) < _INT32}


def _metadata(annotation: Any) -> list[Any]:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        own = [m for one in args[1:] for m in (one.metadata if isinstance(one, FieldInfo) else [one])]
        return [*own, *_metadata(args[0])]
    return [m for one in args for m in _metadata(one)] if origin in (Union, types.UnionType) else []


def _is_json(name: str) -> bool:
    """Whether a value is written as JSON: it is no text, and not a number or a word, as in ``--max-concurrency``."""
    annotation = option_type(name)
    found = _types(annotation)
    plain = all(one in (int, float) or get_origin(one) is Literal for one in found)
    return _kind(annotation)[0] is str and str not in found and not plain


def _value(name: str, value: Any) -> Any:
    flag = f"--{name.replace('_', '-')}"
    if name == "engine_args":
        return engine_args_of(value)
    if name == "ray_options":  # which may have a secret
        return json_object(flag, value, f"""{flag} '{{"resources": {{"a100": 1}}}}'""")
    if name == "chat_template" and value.startswith("@"):
        try:
            return Path(value[1:]).read_text(encoding="utf-8")
        except OSError as e:
            raise OptionError(f"{flag}: {value[1:]} can't be read: {e.strerror}.") from None
    if not _is_json(name):
        if isinstance(value, str) and str not in _types(option_type(name)):
            with contextlib.suppress(ValidationError):  # else the options say what it can be
                return TypeAdapter(option_type(name)).validate_strings(value)
        return value
    try:
        if name == "examples":
            return [tuple(pair) for pair in TypeAdapter(list[tuple[str, Any]]).validate_json(value)]
        json.loads(value)
        (kind,) = _types(option_type(name))
        return TypeAdapter(kind).validate_json(value)
    except ValidationError as e:
        raise OptionError(f"{flag} can't be {value}: {e.errors()[0]['msg']}.{_written(name)}") from None
    except ValueError as e:
        raise OptionError(f"{flag} is not JSON: {e}.{_written(name)}") from None


def _written(name: str) -> str:
    examples = {
        "examples": '[["1 + 1?", "2"]]',
        "adapters": '{"legal": "adapters/legal"}',
        "logit_bias": '{"42": -5}',
        "chat_template_kwargs": '{"enable_thinking": false}',
    }
    return f" Write for example --{name.replace('_', '-')} '{examples[name]}'." if name in examples else ""
