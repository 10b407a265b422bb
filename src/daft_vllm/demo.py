"""The demo: every installed Python package, described by a language model, in typed columns."""

from __future__ import annotations

import enum
import importlib.metadata

import daft
from daft import DataFrame
from pydantic import BaseModel, Field

SYSTEM_MESSAGE = (
    "You label Python packages for a catalogue. You are given a package's name and its summary, and you answer with "
    "JSON. category is the kind of work that the package is used for. audience is who would install it. description is "
    "one short line that says what the package does, in plain words, without its name."
)


class Category(enum.Enum):
    """What a package is used for."""

    WEB = "web"
    DATA = "data"
    MACHINE_LEARNING = "machine learning"
    TESTING = "testing"
    PACKAGING = "packaging"
    NETWORK = "network"
    SECURITY = "security"
    TEXT = "text"
    SYSTEM = "system"
    OTHER = "other"


class Audience(enum.Enum):
    """Who would install a package."""

    DEVELOPERS = "developers"
    DATA_SCIENTISTS = "data scientists"
    OPERATORS = "operators"
    EVERYONE = "everyone"


class Label(BaseModel):
    """One package of the catalogue."""

    category: Category
    audience: Audience
    # The pattern keeps a small model from running on for ever.
    description: str = Field(pattern=r"^[A-Z][A-Za-z0-9 ,'()/.+-]{8,48}$")


def package_table() -> DataFrame:
    """Return the installed packages that have a summary: ``id``, ``name``, ``version``, ``summary``, sorted by name."""
    found = {}
    for distribution in importlib.metadata.distributions():
        meta = distribution.metadata
        if meta["Name"] and meta["Summary"] and meta["Summary"] != "UNKNOWN":
            found[meta["Name"].lower()] = (meta["Name"], distribution.version, meta["Summary"])
    rows = [found[key] for key in sorted(found)]
    return daft.from_pydict(
        {
            "id": list(range(len(rows))),
            "name": [row[0] for row in rows],
            "version": [row[1] for row in rows],
            "summary": [row[2] for row in rows],
        }
    )
