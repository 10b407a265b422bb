"""The Daft expression that runs actors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import daft
from daft import Series

from daft_vllm.udf.worker.actor import PromptActor
from daft_vllm.udf.worker.spec import PromptSpec

_RAY_BATCHES = 2
"""How many batches Daft 0.7 keeps in flight for each Ray actor. An actor needs as many threads."""


def actor_expression(
    spec: PromptSpec,
    columns: Sequence[daft.Expression],
    *,
    use_process: bool,
    engines: int,
    batch_size: int,
    max_batches: int,
    ray_options: Mapping[str, Any] | None = None,
) -> daft.Expression:
    """Return the expression that answers ``columns`` on actors with ``spec``.

    With processes the method is a plain one. Then Daft's native runner gives each process one batch at a time. On Ray
    each actor gets two, and works on both at once, in threads. In the driver the method is a coroutine, and Daft 0.7
    runs up to ``max_concurrency`` of them at once, by default 64.

    Args:
        spec: what the actors do.
        columns: as ``PromptActor.answer`` takes them.
        use_process: see ``prompt``.
        engines: ``max_concurrency`` of ``prompt``.
        batch_size: see ``prompt``.
        max_batches: batches in flight in the driver.
        ray_options: see ``prompt``. Daft takes ``num_cpus`` as an argument of its own.
    """
    options = dict(ray_options or {})
    method = daft.method.batch(return_dtype=spec.dtype, batch_size=batch_size)
    if use_process:

        class Prompt(PromptActor):
            @method
            def __call__(self, *columns: Series) -> Series:
                return self.answer(*columns)

        wrapped = daft.cls(
            cpus=options.pop("num_cpus", None),
            gpus=spec.engine.gpus,
            use_process=True,
            max_concurrency=engines,
            name_override="prompt",
            ray_options={**options, "max_concurrency": _RAY_BATCHES},
        )(Prompt)
    else:

        class StreamingPrompt(PromptActor):
            @method
            async def __call__(self, *columns: Series) -> Series:
                return await self.answer_async(*columns)

        wrapped = daft.cls(gpus=spec.engine.gpus, name_override="prompt", max_concurrency=max_batches)(StreamingPrompt)
    expression: daft.Expression = wrapped(spec)(*columns)
    return expression
