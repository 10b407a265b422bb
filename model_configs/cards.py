"""The GPUs that memory plans can be made for, read from ``overlays/cards.toml``."""

from __future__ import annotations

import difflib
import functools
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from daft_vllm.errors import OptionError

GIB = 2**30
_FILE = Path(__file__).with_name("overlays") / "cards.toml"
_FILLERS = {"nvidia", "geforce", "tesla", "amd", "instinct", "gpu", "gpus", "card", "oam", "edition", "generation"}
"""Words of a card's name that don't tell it from another one."""
_MEMORY_OPTION = "For any other card write its memory in GB: --gpu-memory 24, or gpu_memory=24 in Python."


PCI_EXPRESS = 32e9
"""Bytes a second that a GPU sends over PCI Express 4.0 with 16 lanes."""


@dataclass(frozen=True)
class Card:
    """One kind of GPU.

    Args:
        name: the short name that ``--gpu`` takes.
        full_name: what the driver calls it.
        memory_bytes: memory that a process can use, as CUDA reports it.
        bandwidth: bytes a second from its memory. 0: unknown.
        flops: floating point operations a second with 16-bit numbers, without sparsity. 0: unknown.
        link: bytes a second that it sends to another GPU of its machine: over NVLink, or over PCI Express.
        compute_capability: NVIDIA's, ``"8.9"`` for example. Empty: unknown.
        source: where the numbers come from.
        memory_gb: memory as the maker states it, in GB. 0: unknown.
        names: what else it is called; ``overlays/cards.toml`` says how they are written.
        like: the card whose settings hold for this one too. None: there is none.
        note: what a user of the plan has to know. Empty: nothing.
        engine_args: arguments of vLLM's engine on this card, by vLLM's names.
        why: the reason for each of them, by the argument's name.
    """

    name: str
    full_name: str
    memory_bytes: int
    bandwidth: float
    flops: float
    compute_capability: str
    source: str
    memory_gb: int = 0
    link: float = PCI_EXPRESS
    names: Sequence[str] = ()
    like: str | None = None
    note: str = ""
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    why: Mapping[str, str] = field(default_factory=dict)

    @property
    def capability(self) -> tuple[int, ...] | None:
        """Its compute capability as numbers; None if it is unknown."""
        return tuple(int(part) for part in self.compute_capability.split(".")) if self.compute_capability else None


_UNITS = {"g": 1.0, "gi": GIB / 1e9, "m": 1e-3, "mi": 2**20 / 1e9}
"""GB in each unit of memory."""


class _Spoken(NamedTuple):
    """A card's name as somebody wrote it: small letters and digits, and the numbers in it that may be its memory."""

    name: str
    memory: tuple[int, ...]


@functools.cache
def cards() -> dict[str, Card]:
    """Return the known cards by name."""
    data = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    found = {}
    for name, values in data.items():
        found[name] = Card(
            name=name,
            memory_bytes=int(values.pop("memory_gib") * GIB),
            bandwidth=values.pop("bandwidth_gb") * 1e9,
            flops=values.pop("tflops") * 1e12,
            link=values.pop("link_gb", PCI_EXPRESS / 1e9) * 1e9,
            **values,
        )
    return found


def card_of(name: str, memory_gb: float | str | None = None) -> Card:
    """Return a card by its name, as people or the driver write it: ``"a100-80g"``, ``"NVIDIA L4"``, ``"rtx 4090"``.

    If several cards have the name, and no memory is written beside it, the one with the least memory is returned, with
    a ``note`` that says so.

    Args:
        name: its name. Case, spaces and hyphens don't matter.
        memory_gb: memory in GB that is there instead of the card's own: of a part of a card, for example.

    Raises:
        OptionError: it isn't known, or the memory is not a positive number.
    """
    found = _find(name)
    if not found:
        count = re.match(r"\s*(\d+)\s*[xX×]\s*(.+)|(.+?)\s*[xX×]\s*(\d+)\s*$", name)  # noqa: RUF001
        if count is not None and _find(card := count[2] or count[3]):
            raise OptionError(
                f"gpu names one card, got {name!r}: write {card.strip()}, and gpus={count[1] or count[4]}."
            )
        if memory_gb is not None:
            raise OptionError(
                f"there is no card {name!r}.{_suggest(name)} For a card that isn't known give its memory alone: leave "
                "gpu out."
            )
        raise OptionError(
            f"there is no card {name!r}.{_suggest(name)} There are {', '.join(cards())}. {_MEMORY_OPTION}"
        )
    card = min(found, key=lambda one: one.memory_gb)
    sizes = sorted({one.memory_gb for one in found})
    if len(sizes) > 1 and memory_gb is None:
        others = ", ".join(one.name for one in found if one.memory_gb != card.memory_gb)
        known = " or ".join(map(str, sizes))
        note = f"{name.strip()} exists with {known} GB. This is for {sizes[0]} GB; for more write {others}"
        card = replace(card, note=note)
    return card if memory_gb is None else with_memory(memory_gb, card)


def with_memory(memory_gb: float | str, card: Card | None = None) -> Card:
    """Return a card with this memory in GB; of an unknown kind, if no card is given.

    A GB is 10^9 bytes, so that a plan is never for more than what a card of that size has.

    Raises:
        OptionError: the memory is not a positive number.
    """
    memory_gb = _gigabytes(memory_gb)
    if not 0 < memory_gb < 10_000:
        raise OptionError(f"gpu_memory is a card's memory in GB, 24 for example, got {memory_gb}.")
    size = int(memory_gb * 1e9)
    if card is not None:
        return replace(card, name=f"{card.name} with {memory_gb:g} GB", like=card.like or card.name, memory_bytes=size)
    return Card(
        name=f"{memory_gb:g} GB",
        full_name=f"card with {memory_gb:g} GB",
        memory_bytes=size,
        memory_gb=round(memory_gb),
        bandwidth=0,
        flops=0,
        compute_capability="",
        source="given",
        note="nothing but the memory of this card is known: neither its speed, nor whether it has bfloat16 and FP8",
    )


def _gigabytes(given: object) -> float:
    """Return a memory in GB, given as a number of them, or with its unit: ``"80GB"``, ``"80 GiB"``, ``"81559MiB"``."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([gm]i?b?)?\s*", str(given), re.IGNORECASE)
    if isinstance(given, str) and found is not None:
        return float(found[1]) * _UNITS[(found[2] or "gb").lower().removesuffix("b")]
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise OptionError(f"gpu_memory is a card's memory in GB, 24 for example, got {given!r}.")
    return given


def planned_card(gpu: str | None, memory_gb: float | str | None) -> Card | None:
    """Return the card that options ask a plan for: ``gpu``, ``gpu_memory``, both, or neither (None).

    Raises:
        OptionError: the card isn't known, or the memory is not a positive number.
    """
    if gpu is not None:
        return card_of(gpu, memory_gb)
    return with_memory(memory_gb) if memory_gb is not None else None


def card_named(full_name: str, total: int | None = None) -> Card | None:
    """Return the card with this name in the driver; None if it isn't known.

    Args:
        full_name: the driver's name for it.
        total: bytes of its memory by the driver. If it has less than cards of this kind, that is what counts.
    """
    found = _find(full_name)
    if not found:
        return None
    card = min(found, key=lambda one: abs(one.memory_bytes - (total or 0)) if total else one.memory_gb)
    return card if total is None or total >= card.memory_bytes else replace(card, memory_bytes=total)


def _find(name: str) -> list[Card]:
    """Return the cards that a name may mean, as the file has them."""
    exact = [card for card in cards().values() if name.strip().lower() in (card.name.lower(), card.full_name.lower())]
    if exact:
        return exact
    spoken = _spoken(name)
    found = [card for card in cards().values() if spoken.name in card.names]
    if spoken.memory:
        return [card for card in found if card.memory_gb in spoken.memory]
    return found


def _spoken(name: str) -> _Spoken:
    sizes = "|".join(sorted({str(card.memory_gb) for card in cards().values()}))
    text = re.sub(r"(\d)\s+(g|gi?b)\b", r"\1\2", name.lower())
    text = re.sub(rf"(?<=\w)({sizes})(gi?b)\b", r" \1\2", text)  # "a10080gb"
    words, memory = [], []
    for word in re.split(r"[^a-z0-9]+", text):
        match = re.fullmatch(rf"(\d+)(?:g|gi?b)|({sizes})", word)
        if match:
            memory.append(int(match[1] or match[2]))
        elif word and word not in _FILLERS:
            words.append(word)
    return _Spoken("".join(words), tuple(memory))


def _suggest(name: str) -> str:
    """Return ``" Did you mean ...?"`` with the nearest cards, or an empty string."""
    spoken = _spoken(name).name
    known: dict[str, str] = {}
    for card in cards().values():
        for alias in (*card.names, _spoken(card.name).name):
            known.setdefault(alias, card.name)
    alike = [alias for alias in known if _may_mean(spoken, alias)]
    near = difflib.get_close_matches(spoken, alike, n=3, cutoff=0.6)
    names = [card.name for card in cards().values() if spoken in card.names]  # with another memory
    names = names or list(dict.fromkeys(known[alias] for alias in near))
    return f" Did you mean {' or '.join(map(repr, names))}?" if names else ""


def _may_mean(spoken: str, alias: str) -> bool:
    """Whether one name may be the other with a mistake. A V100 is no H100, and an RTX 4070 no RTX 4090."""
    digits, others = (re.sub(r"\D", "", name) for name in (spoken, alias))
    return (digits in others or others in digits) and (spoken[:1] == alias[:1] or alias in spoken)
