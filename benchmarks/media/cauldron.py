r"""Reads multiple-choice questions about images in the layout of The Cauldron; AI2D is one of its 50 subsets.

Its Parquet files have a row for each image: ``images``, a list of structs of ``bytes`` and ``path``, and ``texts``, a
list of structs of ``user`` (``"Question: ...\nChoices:\nA. ...\nB. ...\nAnswer with the letter."``), ``assistant``
(``"Answer: B"``) and ``source``. See https://huggingface.co/datasets/HuggingFaceM4/the_cauldron.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import daft
from daft import DataType, col, lit
from daft.functions import monotonically_increasing_id

from daft_vllm.errors import OptionError

REPOSITORY = "HuggingFaceM4/the_cauldron"
_CHOICE = re.compile(r"^\s*\(?([A-Z])\)?\s*[.):]\s*(\S.*)$", re.MULTILINE)
_ANSWER = re.compile(r"(?:answer\s*:\s*)?\(?([A-Z])\)?\s*(?:$|[.):\n])", re.IGNORECASE)
_CHOICES_LINE = re.compile(r"^\s*(?:choices|options)\s*:\s*$", re.IGNORECASE | re.MULTILINE)
_HUB_SECONDS = 10.0


class Parsed(NamedTuple):
    """What the texts of a question contain.

    Attributes:
        letters: letters of the choices, ``"ABCD"``. None if it isn't multiple choice.
        answer: the letter of the right choice.
        problem: why the question can't be asked, or None.
    """

    letters: str | None
    answer: str | None
    problem: str | None


def parsed(user: str | None, assistant: str | None) -> Parsed:
    """Read the letters of a question's choices, and the letter of the right one."""
    if not user or not assistant:
        return Parsed(None, None, "the question or its answer is missing")
    starts = list(_CHOICES_LINE.finditer(user))
    if not starts:
        return Parsed(None, None, "the question has no choices")
    letters = "".join(found[1] for found in _CHOICE.finditer(user, starts[-1].end()))
    expected = "".join(chr(ord("A") + i) for i in range(len(letters)))
    if len(letters) < 2 or letters != expected:
        return Parsed(None, None, f"its choices are {letters or 'none'}, and not A, B and so on")
    answer = _ANSWER.match(assistant.strip())
    if answer is None or answer[1].upper() not in letters:
        return Parsed(None, None, f"the right answer, {assistant[:40]!r}, is none of the choices {letters}")
    return Parsed(letters, answer[1].upper(), None)


@daft.func(return_dtype=DataType.struct({name: DataType.string() for name in Parsed._fields}))
def _parsed(user: str, assistant: str) -> Any:
    return parsed(user, assistant)._asdict()


@daft.func(return_dtype=DataType.list(DataType.binary()))
def _contents(images: Any) -> Any:
    return [(one or {}).get("bytes") for one in images or []] or [None]


def read(data: str, subset: str) -> daft.DataFrame:
    """Return the questions of one subset, a row each.

    Args:
        data: a Parquet file, a folder or a pattern of them, a URL that Daft reads; or ``"hub"`` for the real dataset.
        subset: a name for the rows; with the real dataset, the subset that is read.

    Returns:
        ``id``, ``subset``, ``images`` (a list of bytes; one null if there is none), ``question`` (the text as the
        dataset has it), and the fields of ``Parsed``. Texts with a problem are included.

    Raises:
        OptionError: the data isn't there, or has another layout.
    """
    place = f"hf://datasets/{REPOSITORY}/{subset}/*.parquet" if data == "hub" else data
    if "://" not in place and Path(place).is_dir():
        place = f"{place.rstrip('/')}/*.parquet"
    try:
        df = daft.read_parquet(place)
    except FileNotFoundError as e:
        raise OptionError(f"there is no Parquet file at {place!r}.") from e
    except Exception as e:
        raise OptionError(f"{place!r} can't be read: {type(e).__name__}: {e}") from e
    missing = {"images", "texts"} - set(df.column_names)
    if missing:
        raise OptionError(
            f"{place!r} is not laid out as The Cauldron is: it has no column {', '.join(sorted(missing))}."
        )
    df = df.with_column("row", monotonically_increasing_id()).select("row", _contents(col("images")), "texts")
    df = df.with_column("turn", _numbers(col("texts"))).explode("texts", "turn")
    user, assistant = col("texts")["user"], col("texts")["assistant"]
    fields = _parsed(user, assistant)
    return df.select(
        daft.functions.format("{}/{}/{}", lit(subset), col("row"), col("turn")).alias("id"),
        lit(subset).alias("subset"),
        "images",
        user.alias("question"),
        *(fields[name].alias(name) for name in Parsed._fields),
    )


@daft.func(return_dtype=DataType.list(DataType.int64()))
def _numbers(texts: Any) -> Any:
    return list(range(len(texts))) if texts else [0]


def why_hub_unreachable() -> str | None:
    """Return None if the real dataset can be reached, else the reason why not."""
    from huggingface_hub import HfApi

    try:
        HfApi().dataset_info(REPOSITORY, timeout=_HUB_SECONDS)
    except Exception as e:  # for any reason
        return f"{type(e).__name__}: {e}".splitlines()[0][:200]
    return None
