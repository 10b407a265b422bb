"""What vLLM's engine arguments may be, read from vLLM's source text: nothing of vLLM is imported."""

from __future__ import annotations

import ast
import contextlib
import functools
import typing
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from daft_vllm.annotations import allows, shown, words
from daft_vllm.engine.setup.sources import module_source
from daft_vllm.errors import OptionError

_MODULE = "vllm.engine.arg_utils"
_CLASSES = ("EngineArgs", "AsyncEngineArgs")
_PLAIN: Mapping[str, Any] = {
    **{kind.__name__: kind for kind in (bool, int, float, str, list, dict, tuple, set)},
    **{name: getattr(typing, name) for name in ("Any", "Literal", "Union", "Optional")},
}
_LIMITS = ("ge", "gt", "le", "lt")


def vllm_engine_arg_names() -> frozenset[str] | None:
    """Return the names of the installed vLLM's engine arguments, None if vLLM isn't installed."""
    return frozenset(_arguments()) or None


@functools.cache
def engine_arg_type(name: str) -> Any:
    """Return what vLLM says that an engine argument may be, with its limits.

    What can't be read from the source text (a class of vLLM's) is ``Any``, and so is every argument if vLLM isn't
    installed.
    """
    item = _arguments().get(name)
    return Any if item is None else _with_config(_Names(_MODULE).evaluated(item.annotation), item.value)


def check_values(engine_args: Mapping[str, Any]) -> None:
    """Raise ``OptionError`` for a value of another type than the argument's, or out of its range."""
    for name, value in engine_args.items():
        annotation = engine_arg_type(name)
        if not allows(annotation, value):
            raise OptionError(f"engine_args: {name} is {words(annotation)}, got {shown(value)}.")


@functools.cache
def _arguments() -> Mapping[str, ast.AnnAssign]:
    tree = _tree(_MODULE)
    return {
        item.target.id: item
        for node in (tree.body if tree is not None else [])
        if isinstance(node, ast.ClassDef) and node.name in _CLASSES
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }


class _Names:
    """Evaluates the annotations of a module."""

    def __init__(self, module: str) -> None:
        self._module = module

    def evaluated(self, node: ast.expr) -> Any:
        """Return an annotation as an object; ``Any`` for what isn't known."""
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                return self.evaluated(ast.parse(node.value, mode="eval").body)
            return node.value
        if isinstance(node, ast.Name):
            return _PLAIN[node.id] if node.id in _PLAIN else _alias(self._module, node.id)
        if isinstance(node, ast.BinOp):
            return self._either(self.evaluated(node.left), self.evaluated(node.right))
        if isinstance(node, ast.Subscript):
            return self._subscript(node)
        return Any

    def _either(self, left: Any, right: Any) -> Any:
        return Any if left is Any or right is Any else left | right

    def _subscript(self, node: ast.Subscript) -> Any:
        kind = self.evaluated(node.value)
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if kind is typing.Literal:
            values = [self._literal(one) for one in inner]
            known = [one for each in values for one in (each if isinstance(each, tuple) else (each,))]
            return Any if None in values else typing.Literal[tuple(known)]
        if kind is set:  # JSON has lists
            return set[self.evaluated(inner[0])] | list[self.evaluated(inner[0])]  # type: ignore[misc]
        return kind if kind is Any else kind[tuple(map(self.evaluated, inner))]

    def _literal(self, node: ast.expr) -> Any:
        """Return a value in a ``Literal``, or those of another ``Literal`` in it. None: it isn't known."""
        if isinstance(node, ast.Constant):
            return node.value
        other = self.evaluated(node)
        return typing.get_args(other) or None


@functools.cache
def _tree(module: str) -> ast.Module | None:
    source = module_source(module)
    return ast.parse(source) if source is not None else None


@functools.cache
def _alias(module: str, name: str) -> Any:
    """Return what a name stands for in a module of vLLM: ``Any`` unless it is another name for plain types."""
    defined = _definition(module, name)
    if defined is None:
        return Any
    module, node = defined
    return Any if isinstance(node, ast.ClassDef) else _Names(module).evaluated(node)


def _definition(module: str, name: str, depth: int = 0) -> tuple[str, ast.expr | ast.ClassDef] | None:
    """Return the module that defines a name, and its definition: an expression or a class. None: it isn't found."""
    tree = _tree(module)
    if tree is None or depth > 4:
        return None
    statements = [*tree.body, *(inner for node in tree.body if isinstance(node, ast.If) for inner in node.body)]
    for node in statements:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return module, node
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            return module, node.value
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
            return (module, node.value) if node.value is not None else None
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("vllm"):
            for one in node.names:
                if (one.asname or one.name) == name:
                    return _definition(node.module, one.name, depth + 1)
    return None


def _with_config(annotation: Any, default: ast.expr | None) -> Any:
    """Return an annotation with what vLLM's config classes state for this argument: its limits, and None as default.

    An argument's default names its place: ``CacheConfig.gpu_memory_utilization``, or ``get_field(CacheConfig, "...")``.
    """
    place = _place(default)
    defined = _definition(_MODULE, place[0]) if place is not None and annotation is not Any else None
    if place is None or defined is None or not isinstance(defined[1], ast.ClassDef):
        return annotation
    for item in defined[1].body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.target.id == place[1]:
            limits, is_none = _field(item.value)
            if limits and annotation in (int, float):
                annotation = Annotated[annotation, Field(**limits)]
            return annotation | None if is_none else annotation
    return annotation


def _place(default: ast.expr | None) -> tuple[str, str] | None:
    if isinstance(default, ast.Attribute) and isinstance(default.value, ast.Name):
        return default.value.id, default.attr
    if isinstance(default, ast.Call) and len(default.args) == 2:
        config, name = default.args
        if isinstance(config, ast.Name) and isinstance(name, ast.Constant):
            return config.id, str(name.value)
    return None


def _field(value: ast.expr | None) -> tuple[dict[str, Any], bool]:
    """Return the limits of a config's field, and whether its default is None."""
    if isinstance(value, ast.Constant):
        return {}, value.value is None
    keywords = value.keywords if isinstance(value, ast.Call) else []
    constants = {}
    for one in keywords:
        with contextlib.suppress(ValueError):  # no constant
            constants[one.arg] = ast.literal_eval(one.value)
    is_none = "default" in constants and constants["default"] is None
    return {name: limit for name in _LIMITS if (limit := constants.get(name)) is not None}, is_none
