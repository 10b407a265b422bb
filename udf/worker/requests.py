"""Turns a batch's columns into requests for the engine."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from daft import Series

from daft_vllm.engine import Outcome, Request, SamplingOptions
from daft_vllm.errors import OptionError, SchemaError
from daft_vllm.udf.columns.cells import CellReader
from daft_vllm.udf.columns.files import FileAccess
from daft_vllm.udf.worker.batch import Batch
from daft_vllm.udf.worker.spec import PromptSpec


class RequestMaker:
    """Makes the requests of a query.

    Args:
        spec: the query's.
        takes_images: whether the model takes images. It is asked only if a column may have some.
    """

    def __init__(self, spec: PromptSpec, takes_images: Callable[[], bool]) -> None:
        self._spec = spec
        self._cells = CellReader(
            spec.parts,
            spec.turns,
            spec.options.files or FileAccess(),
            takes_images,
            skip_blank=spec.options.skip_blank,
        )

    def batch_of(self, columns: Sequence[Series]) -> Batch:
        """Return a batch's requests, and the outcomes of the rows that can't be asked.

        Args:
            columns: as ``PromptActor.answer`` takes them.
        """
        spec = self._spec
        parts, others = columns[: self._cells.num_columns], list(columns[self._cells.num_columns :])
        rows = len(parts[0])
        row_keys: list[str | None] = others.pop().to_pylist() if spec.row_key else [None] * rows
        names: list[str | None] = others.pop().to_pylist() if spec.format.forms else [None] * rows
        adapters: list[str | None] = others.pop().to_pylist() if spec.row_adapter else [spec.adapter] * rows
        systems: list[str | None] = others.pop().to_pylist() if spec.row_system_message else [None] * rows
        refused: dict[int, Outcome] = {}
        requests: dict[int, Request] = {}
        prompts = self._cells.prompts(parts)
        for i, (prompt, system, sampling) in enumerate(zip(prompts, systems, self.sampling(rows, others), strict=True)):
            if isinstance(prompt, Outcome):
                refused[i] = prompt
                continue
            if prompt is None:  # the engine returns the error for it, whatever the row's other options are
                requests[i] = Request(None)
                continue
            try:
                if isinstance(sampling, OptionError):
                    raise sampling
                constraint = spec.format.of_row(names[i]).constraint
                adapter = self._adapter_of(adapters[i])
            except (OptionError, SchemaError) as e:
                refused[i] = Outcome.failed("invalid_request", str(e))
                continue
            requests[i] = Request(
                prompt,
                system_message=spec.system_message if system is None else system,
                examples=spec.examples,
                preamble=spec.preambles.get(names[i]),
                thinking=spec.thinking,
                sampling=sampling,
                own_seed="seed" not in spec.row_options,  # a column's seed is used as it is
                constraint=constraint,
                apply_chat_template=spec.options.apply_chat_template,
                chat_template_kwargs=spec.chat_template_kwargs,
                adapter=adapter,
                toolbox=spec.toolbox,
                row_key=row_keys[i],
                truncation=spec.truncation,
            )
        return Batch(parts[0].name(), rows, refused, names, row_keys, requests)

    def sampling(self, rows: int, options: Sequence[Series]) -> Iterator[SamplingOptions | OptionError]:
        """Return each row's sampling options, or the error if they can't be used."""
        spec = self._spec
        if not options:
            yield from itertools.repeat(spec.sampling, rows)
            return
        seen: dict[str, SamplingOptions | OptionError] = {}
        for values in zip(*(series.to_pylist() for series in options), strict=True):
            # Lists and maps can't be keys, and the text of a long array of numpy is shortened.
            key = repr([value.tolist() if hasattr(value, "tolist") else value for value in values])
            if key not in seen:
                try:
                    given = {n: v for n, v in zip(spec.row_options, values, strict=True) if v is not None}
                    seen[key] = spec.sampling.replace(given)
                except OptionError as e:
                    seen[key] = e
            yield seen[key]

    def _adapter_of(self, name: str | None) -> str | None:
        known = self._spec.engine.adapters
        if name is not None and name not in known:
            raise OptionError(f"there is no adapter {name!r}: the column has to name one of {', '.join(known)}.")
        return name
