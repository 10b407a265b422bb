"""``OfflineEngine``: requests in, outcomes out, around one vLLM engine that is driven from one thread."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace

from daft_vllm.engine.constraints.constraint import Backend, Constraint
from daft_vllm.engine.constraints.enforcement import enforcement_of
from daft_vllm.engine.process.core import GRACE_SECONDS
from daft_vllm.engine.process.group import EngineGroup
from daft_vllm.engine.requests.content import MediaKind
from daft_vllm.engine.requests.limits import NO_LIMITS, Limits
from daft_vllm.engine.requests.outcome import Outcome
from daft_vllm.engine.requests.request import Request, Truncation
from daft_vllm.engine.requests.sampling import SamplingOptions
from daft_vllm.engine.requests.stats import EngineFigures, EngineStats
from daft_vllm.engine.requests.toolbox import Toolbox
from daft_vllm.engine.scheduling.row import Call, Row
from daft_vllm.engine.setup.config import EngineConfig
from daft_vllm.engine.text.render import RequestRenderer
from daft_vllm.errors import EngineError, EngineStartError

EXIT_SECONDS = 5.0
"""How long vLLM's processes may take to end by themselves when this process ends. Idle processes take one second, and
several on a busy machine. If those of several GPUs are killed, Python warns of semaphores that they leave."""
DRAIN_SECONDS = 0.05
"""How often ``drain`` looks whether rows are inside vLLM."""
RENDER_ROWS = 2048
"""How many rows are rendered before the first of them is sent to vLLM: enough for the queue to find what they share,
but few enough that vLLM does not wait while the rest of a large batch is tokenized."""


class OfflineEngine:
    """A vLLM engine, or several with the same model behind one queue, for any number of concurrent callers.

    Opened on construction: the model is loaded before ``__init__`` returns. vLLM's core runs in a child process; one
    thread of this process drives it, sends waiting rows when there is room, and checks that it is alive. Of several
    engines one loads first, then the others, side by side. Each takes rows as soon as it is ready.
    Rows with the same prefix go to the same one, unless another would have nothing to do. If one ends for good, the
    others go on with its rows.

    Args:
        config: how to start the engine.
        variables: for each engine, environment variables of its own, such as the mask of its GPUs. Default: one engine,
            with those of this process.
        check_chat_template: refuse a model without a chat template right after it is loaded.

    Raises:
        MissingPackageError: vLLM is not installed.
        OptionError: vLLM refuses an engine argument.
        ModelError: the model has no chat template.
        EngineStartError: vLLM did not start.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        variables: Sequence[Mapping[str, str]] = ({},),
        check_chat_template: bool = True,
    ) -> None:
        self.config = config
        self._state = EngineGroup(config, variables)
        self._rendering = threading.Lock()
        self._backends_checked: set[Backend] = set()
        # weakref.finalize's own exit hook would run after multiprocessing's, which would wait for vLLM's core for ever.
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
            dedupe: compute the answer of rows with the same prompt and options once, if the answer is determined: at
                temperature 0 or with a seed. At least the latest 32 MiB of answers are remembered, until the engine is
                closed or ``forget_answers`` is called.

        Raises:
            EngineDiedError: vLLM died, or stalled for ``stall_timeout`` seconds, before every row was answered. It had
                already been started again ``max_restarts`` times in a row, or could not be started again.
            EngineClosedError: the engine is closed.
        """
        future = self.submit(requests, dedupe=dedupe)
        try:
            outcomes = self._state.wait(future)
        except BaseException:  # also an interrupt: nobody waits for these rows any more
            future.cancel()
            raise
        if len(outcomes) != len(requests):
            raise EngineError(f"{len(requests)} rows went in and {len(outcomes)} came out: a bug, please report it.")
        return outcomes

    def submit(
        self,
        requests: Sequence[Request],
        *,
        dedupe: bool = True,
        each: Callable[[int, Outcome], None] | None = None,
        limits: Limits = NO_LIMITS,
    ) -> Future[list[Outcome]]:
        """Do what ``run`` does, but return as soon as every row is rendered and waits in the queue.

        Cancelling the future drops the rows.

        Args:
            requests: the rows.
            dedupe: as in ``run``.
            each: called with the index and the outcome of each row as soon as it is there, by any thread. It must not
                block or raise.
            limits: how much time the rows have. Those whose time is over get an error. That is looked at every half
                second.

        Raises:
            EngineDiedError, EngineClosedError: as in ``run``, if the engine has already ended. Otherwise the future
                raises them.
        """
        self._state.raise_if_over()
        call = Call(len(requests), each, limits)
        call.future.add_done_callback(lambda future: self._state.abandon(call) if future.cancelled() else None)
        try:
            for start in range(0, len(requests), RENDER_ROWS):
                self._submit(call, start, requests[start : start + RENDER_ROWS], dedupe=dedupe)
        except BaseException:
            call.future.cancel()
            raise
        return call.future

    def _submit(self, call: Call, start: int, requests: Sequence[Request], *, dedupe: bool) -> None:
        """Render ``requests``, the rows of ``call`` from index ``start`` on, and pass them to the engine's thread."""
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

    def check_truncation(self, truncation: Truncation) -> None:
        """Raise ``OptionError`` if prompts would be cut to more tokens than the context takes."""
        self._renderer.check_truncation(truncation)

    def check_tools(self, toolbox: Toolbox, *, thinking: bool) -> None:
        """Raise ``ModelError`` or ``OptionError`` if the model can't take tools, or its calls can't be read."""
        self._renderer.check_tools(toolbox, thinking=thinking)

    def check_constraints(self, constraints: Sequence[Constraint], like: Request) -> None:
        """Test once for each grammar library that constraints have an effect with this model.

        The model may write one word only, and has to write it.

        Args:
            constraints: the constraints of later requests. The libraries that enforce them are tested.
            like: a request like the later ones. Its chat template's arguments are used.

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
                    f"constraints have no effect with model {self.config.model!r}: only {word!r} was allowed, and it "
                    f"wrote {(outcome.text or '')[:200]!r} ({outcome.error or test.constraint}). Leave return_format "
                    "out, or use another model."
                )
        self._backends_checked |= backends

    def drain(self, seconds: float) -> None:
        """Send no more rows to vLLM, for good, and return when those inside it are answered.

        Args:
            seconds: how long to wait for that at most.
        """
        self._state.hold()
        deadline = time.monotonic() + seconds
        while not self.is_over and self.stats().in_flight and time.monotonic() < deadline:
            time.sleep(DRAIN_SECONDS)

    def forget_answers(self) -> None:
        """Forget all answers: later rows are computed, even if an equal row was computed before."""
        self._state.forget_answers()

    def set_limits(self, stall_timeout: float, max_restarts: int) -> None:
        """Change these two settings of the config, without loading the model again.

        Args:
            stall_timeout: as in ``EngineConfig``, for rows in flight too.
            max_restarts: as in ``EngineConfig``. Starts that were used count.
        """
        self.config = replace(self.config, stall_timeout=stall_timeout, max_restarts=max_restarts)
        self._state.set_limits(stall_timeout, max_restarts)

    def stats(self) -> EngineStats:
        """Return the current counters. ``rows`` = ``pending`` + ``in_flight`` + ``done`` + ``abandoned``."""
        return self._state.snapshot()

    def figures(self) -> list[EngineFigures]:
        """Return what each vLLM does and has done. Those that are not started yet follow as they are."""
        return self._state.figures()

    @property
    def is_over(self) -> bool:
        """Whether this engine died or was closed. It then answers no more rows."""
        return self._state.is_over

    @property
    def process_ids(self) -> list[int]:
        """Ids of vLLM's processes: the core and its workers."""
        return self._state.process_ids

    @property
    def max_model_len(self) -> int:
        """The context of the loaded model, in tokens."""
        return self._state.core.max_model_len

    def close(self, grace: float = GRACE_SECONDS) -> None:
        """Stop vLLM and leave no process behind; waiting calls raise ``EngineClosedError``. Safe to call twice.

        Args:
            grace: seconds that vLLM's processes get to end by themselves before they are killed.
        """
        atexit.unregister(self._finalizer)
        if self._finalizer.detach() is not None:
            self._state.stop(grace=grace)

    def __enter__(self) -> OfflineEngine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
