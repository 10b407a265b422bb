"""``OfflineEngine``: requests in, outcomes out, around one vLLM engine that is driven from one thread."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace

from daft_vllm.engine.constraints.constraint import Backend, Constraint
from daft_vllm.engine.constraints.enforcement import enforcement_of
from daft_vllm.engine.process.core import GRACE_SECONDS
from daft_vllm.engine.process.thread import EngineThread
from daft_vllm.engine.requests.content import MediaKind
from daft_vllm.engine.requests.outcome import Outcome
from daft_vllm.engine.requests.request import Request
from daft_vllm.engine.requests.sampling import SamplingOptions
from daft_vllm.engine.requests.stats import EngineStats
from daft_vllm.engine.requests.toolbox import Toolbox
from daft_vllm.engine.scheduling.row import Call, Row
from daft_vllm.engine.setup.config import EngineConfig
from daft_vllm.engine.text.render import RequestRenderer
from daft_vllm.errors import EngineError, EngineStartError

EXIT_SECONDS = 2.0
"""How long vLLM's processes may take to end by themselves when this one ends: Daft waits 5 seconds for a UDF process.
Without a load they take one; killed at once they leave a warning of vLLM's and one of Python's."""
RENDER_ROWS = 2048
"""Rows that are rendered before vLLM is given the first of them: enough for the queue to find what they share, few
enough that vLLM does not wait while the rest of a large batch is tokenized."""


class OfflineEngine:
    """One vLLM engine for any number of concurrent callers.

    Opened on construction: the model is loaded before ``__init__`` returns. vLLM's core runs in a child process; one
    thread of this process drives it, admits waiting rows as room appears, and watches that it lives.

    Args:
        config: how to start the engine.
        check_chat_template: refuse a model without a chat template right after it is loaded.

    Raises:
        MissingPackageError: vLLM is not installed.
        OptionError: vLLM refuses an engine argument.
        ModelError: the model has no chat template.
        EngineStartError: vLLM did not start.
    """

    def __init__(self, config: EngineConfig, *, check_chat_template: bool = True) -> None:
        self.config = config
        self._state = EngineThread(config)
        self._rendering = threading.Lock()
        self._backends_checked: set[Backend] = set()
        # weakref.finalize's own exit hook would come after multiprocessing's, which joins vLLM's core: for ever.
        self._finalizer = weakref.finalize(self, self._state.stop, grace=EXIT_SECONDS)
        self._finalizer.atexit = False
        try:
            self._state.start()
            # After vLLM imported multiprocessing: exit functions run last in, first out.
            atexit.register(self._finalizer)
            core = self._state.core
            self._renderer = RequestRenderer(config, core.llm.renderer, core.max_model_len)
            if check_chat_template:
                self._renderer.check_chat_template()
        except BaseException:
            self.close()
            raise

    def run(self, requests: Sequence[Request], *, dedupe: bool = True) -> list[Outcome]:
        """Answer ``requests``: one outcome each, in their order. Blocks; may be called from many threads at once.

        Rows of all callers wait in one queue, in the order of their prefixes. A row's failure is its outcome.
        Exceptions concern the engine as a whole.

        Args:
            requests: the rows.
            dedupe: give rows with the same prompt and options one answer, computed once, where that answer is
                determined: at temperature 0 or with a seed. Answers are remembered as long as the engine is open, the
                latest 32 MiB of them at least, or until ``forget_answers``.

        Raises:
            EngineDiedError: vLLM died, or stalled for ``stall_timeout`` seconds, before every row was answered, and
                had been started again ``max_restarts`` times in a row or did not start.
            EngineClosedError: the engine is closed.
        """
        future = self.submit(requests, dedupe=dedupe)
        try:
            outcomes = self._state.wait(future)
        except BaseException:  # an interrupt among them: nobody waits for these rows any more
            future.cancel()
            raise
        if len(outcomes) != len(requests):
            raise EngineError(f"{len(requests)} rows went in and {len(outcomes)} came out: a bug, please report it.")
        return outcomes

    def submit(self, requests: Sequence[Request], *, dedupe: bool = True) -> Future[list[Outcome]]:
        """Do as ``run`` does, and return as soon as every row is rendered and waits for its turn.

        Cancelling the future gives up the rows.

        Raises:
            EngineDiedError, EngineClosedError: as ``run`` does, here if the engine is gone already.
        """
        self._state.raise_if_over()
        call = Call(len(requests))
        call.future.add_done_callback(lambda future: self._state.abandon(call) if future.cancelled() else None)
        try:
            for start in range(0, len(requests), RENDER_ROWS):
                self._submit(call, start, requests[start : start + RENDER_ROWS], dedupe=dedupe)
        except BaseException:
            call.future.cancel()
            raise
        return call.future

    def _submit(self, call: Call, start: int, requests: Sequence[Request], *, dedupe: bool) -> None:
        """Render ``requests``, which are ``call``'s from row ``start`` on, and hand them to the engine's thread."""
        block_size = self._state.core.block_size
        rows: list[Row] = []
        finished: list[tuple[int, Outcome]] = []
        with self._rendering:  # one caller at a time: the first to be ready feeds the engine while the next renders
            for index, prepared in enumerate(self._renderer.prepare(requests), start):
                if isinstance(prepared, Outcome):
                    finished.append((index, prepared))
                else:
                    rows.append(Row(call, index, prepared, block_size, dedupe=dedupe))
        self._state.submit(call, rows, finished)

    @property
    def has_chat_template(self) -> bool:
        """Whether the model has a chat template, or one was passed."""
        return self._renderer.has_chat_template

    def takes(self, kind: MediaKind) -> bool:
        """Whether the model takes media of a kind."""
        return self._renderer.takes(kind)

    def check_media(self, kinds: Iterable[MediaKind]) -> None:
        """Raise ``ModelError`` if the model doesn't take media of one of ``kinds``."""
        self._renderer.check_media(kinds)

    def check_tools(self, toolbox: Toolbox, *, thinking: bool) -> None:
        """Raise ``ModelError`` or ``OptionError`` if the model can't be told of tools, or its calls can't be read."""
        self._renderer.check_tools(toolbox, thinking=thinking)

    def check_constraints(self, constraints: Sequence[Constraint], like: Request) -> None:
        """Make sure, once, that constraints have an effect with this model: that it writes what it is told.

        Args:
            constraints: those that will follow; the libraries that hold them are tried.
            like: a request of the kind that will follow: its chat template's arguments are used.

        Raises:
            EngineStartError: a constraint has no effect.
        """
        backends = {enforcement_of(constraint).backend for constraint in constraints} - self._backends_checked
        word = "daft-vllm"
        tests = [
            replace(
                like,
                prompt="Hello",
                sampling=SamplingOptions(max_tokens=32),
                constraint=Constraint(choices=(word,), backend=backend),
                thinking=None if like.thinking is None else False,
            )
            for backend in sorted(backends)
        ]
        for test, outcome in zip(tests, self.run(tests, dedupe=False), strict=True):
            if outcome.text != word:
                raise EngineStartError(
                    f"constraints have no effect with model {self.config.model!r}: held to {word!r}, it wrote "
                    f"{outcome.text!r} ({outcome.error or test.constraint}). Leave return_format out, or use another "
                    "model."
                )
        self._backends_checked |= backends

    def forget_answers(self) -> None:
        """Compute anew what was computed before, for rows that come from now on."""
        self._state.forget_answers()

    def stats(self) -> EngineStats:
        """Return the counters as they stand. Rows in equal rows pending, in flight, done and abandoned."""
        return self._state.snapshot()

    @property
    def is_over(self) -> bool:
        """Whether this engine died or was closed: it answers no more."""
        return self._state.is_over

    @property
    def process_ids(self) -> list[int]:
        """Ids of vLLM's processes: the core and its workers."""
        return self._state.process_ids

    @property
    def max_model_len(self) -> int:
        """The context of the model as it was loaded, in tokens."""
        return self._state.core.max_model_len

    def close(self) -> None:
        """Stop vLLM and leave no process behind; waiting calls raise ``EngineClosedError``. Safe to call twice."""
        atexit.unregister(self._finalizer)
        if self._finalizer.detach() is not None:
            self._state.stop(grace=GRACE_SECONDS)

    def __enter__(self) -> OfflineEngine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
