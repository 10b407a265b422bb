"""Looks up what daft-vllm relies on inside vLLM, in vLLM's source text: nothing of vLLM is imported."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from daft_vllm.engine.setup.sources import module_source


class Target(NamedTuple):
    """A name in a module, vLLM's or another package's.

    Attributes:
        module: full name of the module.
        name: a name that the module defines or imports, or ``Class.member``.
        parameters: parameters that the function must have, in this order; it may have others too. Empty: not checked.
        uses: a text that the module must contain. Empty: not checked.
    """

    module: str
    name: str = ""
    parameters: tuple[str, ...] = ()
    uses: str = ""

    def problem(self, folder: Path | None = None) -> str | None:
        """Return what is not as expected. None: all is as expected.

        Args:
            folder: where the package of the module is. None: where Python finds it.
        """
        source = module_source(self.module, folder)
        if source is None:
            return f"{self.module} is gone"
        if self.uses and self.uses not in source:
            return f"{self.module} has no {self.uses!r}"
        if not self.name:
            return None
        found = _find(_parsed(source), self.name.split("."))
        if found is None:
            return f"{self.module} has no {self.name}"
        if self.parameters and isinstance(found, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names = [one.arg for one in (*found.args.posonlyargs, *found.args.args, *found.args.kwonlyargs)]
            if [name for name in names if name in self.parameters] != list(self.parameters):
                return f"{self.module}.{self.name} takes ({', '.join(names)}), not ({', '.join(self.parameters)})"
        return None


@dataclass(frozen=True)
class Patch:
    """One place where daft-vllm changes vLLM, or relies on it.

    Attributes:
        name: its name: the name of its module in this folder, if it has one.
        does: what it changes, or relies on.
        without: what happens without it.
        targets: what it needs in vLLM.
        where: the file in ``engine/`` that applies it, or relies on it.
        applied: whether that file applies it with ``apply_patch``. False: the file asks whether the patch is left out,
            or always needs it.
        required: whether no engine can run without it.
        required_with_adapters: whether no engine with LoRA adapters can run without it.
        required_if_reproducible: whether no engine with ``reproducible=True`` can run without it.
        reproducible_only: whether only engines with ``reproducible=True`` use it.
        cpu_only: whether only engines on CPUs use it.
        gpu_only: whether only engines on GPUs use it.
        needs: name of the patch that applies it. None: it is applied by itself.
        seen: releases of vLLM with which its tests were run.
    """

    name: str
    does: str
    without: str
    targets: tuple[Target, ...]
    where: str
    applied: bool = True
    required: bool = False
    required_with_adapters: bool = False
    required_if_reproducible: bool = False
    reproducible_only: bool = False
    cpu_only: bool = False
    gpu_only: bool = False
    needs: str | None = None
    seen: tuple[str, ...] = ("0.32.0",)

    def is_used(self, *, cpu: bool, reproducible: bool) -> bool:
        """Whether an engine uses it: one on a CPU or on GPUs, with ``reproducible=True`` or without."""
        return not ((self.gpu_only if cpu else self.cpu_only) or (self.reproducible_only and not reproducible))


@functools.lru_cache(maxsize=32)
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


def _find(tree: ast.Module | ast.ClassDef, names: list[str]) -> ast.AST | None:
    """Return the definition of a dotted name."""
    for node in _statements(tree.body):
        if names[0] in _defined(node):
            if len(names) == 1:
                return node
            return _find(node, names[1:]) if isinstance(node, ast.ClassDef) else None
    return None


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Return the statements of a body, with those inside ``if`` and ``try``."""
    for node in body:
        yield node
        if isinstance(node, ast.If):
            yield from _statements([*node.body, *node.orelse])
        elif isinstance(node, ast.Try):
            handled = [statement for handler in node.handlers for statement in handler.body]
            yield from _statements([*node.body, *handled, *node.orelse])


def _defined(node: ast.stmt) -> set[str]:
    """Return the names that a statement defines."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {alias.asname or alias.name for alias in node.names}
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return {node.target.id}
    if isinstance(node, ast.Assign):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    return set()
