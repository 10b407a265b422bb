"""Measures how well a model reads diagrams, with the images and without: ``python -m benchmarks.media.ai2d``.

Each multiple-choice question is asked twice, first with its image, then with its text alone. The answer is constrained
to the letters of the choices. The report compares both: what is right only with the image was read from the image.

AI2D is read from the hub, if that can be reached, or from a copy of its Parquet files (``--data``). Other subsets of
The Cauldron with multiple-choice questions can be read too (``--subsets ai2d,scienceqa,tqa``). If the hub can't be
reached, diagrams like AI2D's are drawn, and the report says so.
"""

from __future__ import annotations

import io
import json
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import daft
import typer
from daft import DataType, col
from daft.functions import coalesce, when

from benchmarks import shrunken
from benchmarks.media.ai2d_report import Pass, Report, write_report
from benchmarks.media.cauldron import read, why_hub_unreachable
from benchmarks.media.diagrams import write_diagrams
from daft_vllm import PerRow, image, prompt
from daft_vllm.engine.media.decode import image_from_bytes
from daft_vllm.engine.requests.media import MediaError
from daft_vllm.errors import DaftVLLMError
from daft_vllm.model_configs import resolve_model

THUMBNAIL = 320
"""Pixels of the longer side of a picture in the report."""
_TINY_ARGS = {"load_format": "dummy", "max_model_len": 2048, "kv_cache_memory_bytes": 1 << 28}


@daft.func(return_dtype=DataType.binary())
def _thumbnail(images: Any, wanted: bool) -> Any:
    """Return a thumbnail of the first image; None if it is not wanted or can't be read."""
    if not wanted or not images or images[0] is None:
        return None
    try:
        small = image_from_bytes(images[0])
    except MediaError:
        return None
    small.thumbnail((THUMBNAIL, THUMBNAIL))
    file = io.BytesIO()
    small.save(file, format="JPEG", quality=80)
    return file.getvalue()


def ask(df: daft.DataFrame, name: str, messages: Any, letters: list[str], options: dict[str, Any]) -> daft.DataFrame:
    """Add a column: a struct of ``value`` (the letter), ``error``, ``prompt_tokens`` and ``cached_tokens``."""
    formats = PerRow(col("letters"), {one: list(one) for one in letters})
    # No description of the format: the questions say how to answer. A description would come before the image, and
    # rows with other letters could not share the image's tokens.
    answer = prompt(messages, formats, details=True, describe_schema=False, max_tokens=8, **options)
    df = df.with_column(name, answer)
    values = col(name)["value"]
    letter = coalesce(*(values[one] for one in letters))
    # A question whose image is null was not asked; here that counts as an answer that is missing.
    error = coalesce(col(name)["error"], when(letter.is_null(), col(name)["finish_reason"]))
    kept = {"value": letter, "error": error, **{one: col(name)[one] for one in ("prompt_tokens", "cached_tokens")}}
    return df.with_column(name, daft.functions.to_struct(**kept))


def evaluate(df: daft.DataFrame, options: dict[str, Any]) -> tuple[daft.DataFrame, Pass, Pass]:
    """Ask every question with its image and without.

    Args:
        df: as ``cauldron.read`` returns it.
        options: arguments of ``prompt()``: the model, and where it runs.

    Returns:
        The rows with the columns ``seen`` and ``blind`` (see ``ask``), their ``quadrant``, and a ``picture`` for those
        that were wrong with the image. Then both passes with their seconds.
    """
    found = df.where(col("letters").not_null()).select("letters").distinct().to_pydict()["letters"]
    if not found:
        raise typer.BadParameter("none of the questions is multiple choice.")
    letters = sorted(found)
    df = df.with_column("question", when(col("problem").is_null(), col("question")).otherwise(daft.lit(None)))
    df.limit(1).select(prompt(col("question"), max_tokens=1, **options)).collect()  # load the model before the passes

    started = time.monotonic()
    asked = ask(df, "seen", [image(col("images")), col("question")], letters, options)
    wrong = col("problem").is_null() & ~coalesce(col("seen")["value"] == col("answer"), daft.lit(False))
    asked = asked.with_column("picture", _thumbnail(col("images"), wrong)).exclude("images").collect()
    with_images = time.monotonic() - started

    started = time.monotonic()
    asked = ask(asked, "blind", col("question"), letters, options).collect()
    without = time.monotonic() - started

    seen, blind = (coalesce(col(name)["value"] == col("answer"), daft.lit(False)) for name in ("seen", "blind"))
    quadrant = when(seen & blind, "both right").when(seen & ~blind, "image helped").when(~seen & blind, "image hurt")
    quadrant = when(col("problem").not_null(), "not asked").otherwise(quadrant.otherwise("both wrong"))
    return asked.with_column("quadrant", quadrant), Pass("with", with_images), Pass("without", without)


def main(
    out: Annotated[Path, typer.Option(help="Folder for report.html, summary.json and rows.parquet.")] = Path(
        "out/ai2d"
    ),
    data: Annotated[
        str,
        typer.Option(help="Parquet files in The Cauldron's layout, hub, synthetic, or auto: hub, if it answers."),
    ] = "auto",
    subsets: Annotated[str, typer.Option(help="Subsets, with commas; in a local copy, its folders.")] = "ai2d",
    model: Annotated[str, typer.Option(help="Folder or name. Default: a shrunken Gemma-3 with random weights.")] = "",
    engine_args: Annotated[str, typer.Option(help="vLLM's engine arguments as JSON.")] = "{}",
    gpus: Annotated[float | None, typer.Option(help="GPUs of each engine.")] = None,
    engines: Annotated[int, typer.Option(min=1, help="Engines.")] = 1,
    limit: Annotated[int, typer.Option(help="Questions of each subset. 0: all.")] = 0,
    diagrams: Annotated[int, typer.Option(min=1, help="Diagrams to draw where there is no dataset.")] = 200,
    dollars_per_hour: Annotated[float, typer.Option(help="What one engine's machine costs, for the report.")] = 0.0,
    ray: Annotated[bool, typer.Option(help="Run on Ray: on the cluster of RAY_ADDRESS, if it is set.")] = False,
) -> None:
    """Evaluate a model on diagrams, and write a report."""
    names = [name.strip() for name in subsets.split(",") if name.strip()]
    args = json.loads(engine_args)
    note = ""
    if data == "auto":
        why_not = why_hub_unreachable()
        data = "hub" if why_not is None else "synthetic"
        if why_not is not None:
            note = f"Drawn diagrams, not AI2D: the hub can't be reached ({why_not})."
            typer.echo(f"{note} --data takes a copy of the dataset.", err=True)
    elif data == "synthetic":
        note = "Drawn diagrams, not AI2D."
    if ray:
        daft.set_runner_ray()
    if ray or engines > 1:
        note += " The seconds include loading the models."
    with tempfile.TemporaryDirectory() as folder:
        if data == "synthetic":
            data, names = str(Path(folder) / "diagrams.parquet"), ["synthetic"]
            write_diagrams(Path(data), diagrams)
        if not model:
            model = shrunken.gemma3(resolve_model("smollm2-135m"), Path(folder) / "gemma3", tokens=64)
            args = {**_TINY_ARGS, **args}
            note += " A shrunken Gemma-3 with random weights: what it answers means nothing."
        try:
            parts = [read(_of_subset(data, name, names), name) for name in names]
            parts = [part.limit(limit) for part in parts] if limit else parts
            df = parts[0]
            for part in parts[1:]:
                df = df.concat(part)
            options = {"model": model, "engine_args": args, "gpus": gpus, "max_concurrency": engines}
            rows, seen, blind = evaluate(df, options)
        except DaftVLLMError as e:
            raise typer.BadParameter(str(e)) from e
        report = Report(
            rows.to_pylist(),
            (seen, blind),
            model=Path(model).name if Path(model).exists() else model,
            engines=engines,
            dollars_per_hour=dollars_per_hour,
            note=note.strip(),
        )
        out.mkdir(parents=True, exist_ok=True)
        rows.exclude("picture").write_parquet(str(out / "rows.parquet"), write_mode="overwrite")
        write_report(report, out)
    typer.echo(report.text())


def _of_subset(data: str, name: str, names: list[str]) -> str:
    """Return where a subset is: a copy of several subsets has a folder for each."""
    return data if data == "hub" or len(names) == 1 else f"{data.rstrip('/')}/{name}"


if __name__ == "__main__":
    typer.run(main)
