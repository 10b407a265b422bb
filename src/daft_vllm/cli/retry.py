"""``daft-vllm retry``: runs the job of a store again, in which rows that failed are asked with changed options."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from daft_vllm.cli.options import ARGUMENTS, options_of
from daft_vllm.cli.show import STORE
from daft_vllm.cli.terminal import console, fail

if TYPE_CHECKING:
    from daft_vllm.engine.store.manifest import Command

_FOR_ONE_RUN = ("--resume",)
"""Flags of a command that it isn't run again with."""
_HIDDEN = "<a secret>"
_WHOLE = re.compile(r'"(runtime_env|env_vars)"')
"""What an argument has that is hidden whole: variables may hold secrets that nobody recognizes."""
_is_retry: ContextVar[bool] = ContextVar("_is_retry", default=False)
"""Whether a command is run again here: it is not the job's command then."""


def remember(context: typer.Context, store: str | None) -> None:
    """Keep the arguments of a command in the store that it uses. Secrets in them are not kept.

    Raises:
        StoreError: they can't be written.
    """
    arguments = context.meta.get(ARGUMENTS)
    if store is None or arguments is None or _is_retry.get() or "--store-retry" in arguments:
        return
    from daft_vllm.engine.store.manifest import Command, write_command
    from daft_vllm.engine.store.remote import is_url
    from daft_vllm.secrets import without_secrets

    if is_url(store):  # others may read it
        return
    kept = [one if without_secrets(one) == one and not _WHOLE.search(one) else _HIDDEN for one in arguments]
    kept = [one for one in kept if one not in _FOR_ONE_RUN]
    write_command(Path(store).expanduser(), Command(str(Path.cwd()), kept))


def retry(
    context: typer.Context,
    store: Annotated[str, typer.Argument(help=STORE)],
    given: Mapping[str, Any],
    retries: Annotated[
        int | None, typer.Option(min=0, help="How often to ask again for a row that fails again.")
    ] = None,
) -> None:
    """Ask the rows again that failed, with changed options, and write the job's output anew, complete.

    The job is the daft-vllm run --store that made the store. Rows that have an answer keep it. A new answer takes the
    place of the failed one in the store; a row that fails again keeps what it had.
    """
    from daft_vllm.errors import DaftVLLMError

    try:
        changed = options_of(given)
        command = _command_of(store, changed, retries)
        console.print(f"in {command.folder}: daft-vllm run {_shown(command.arguments)}", highlight=False, markup=False)
        with _inside(command.folder):
            code = _run(context, command.arguments)
    except DaftVLLMError as e:
        fail(str(e))
    if code:
        raise typer.Exit(code)


def _command_of(store: str, changed: Mapping[str, Any], retries: int | None) -> Command:
    from daft_vllm.engine.store.manifest import Command, asked_of, read_command
    from daft_vllm.engine.store.remote import is_url
    from daft_vllm.errors import OptionError, StoreError
    from daft_vllm.udf.options import PromptOptions

    if not changed and retries is None:
        raise OptionError("say what changes for the rows that failed: --max-tokens 2048, for example, or --retries 2.")
    if changed:
        PromptOptions(store=store, thinking=True, store_retry=dict(changed))  # which checks them
    if is_url(store):
        raise OptionError(
            f"the command of a job is not kept in a store under a URL, such as {store}: run the command again, with "
            "--overwrite and --store-retry."
        )
    folder = Path(store).expanduser()
    asked_of(folder)
    command = read_command(folder)
    if command is None:
        raise StoreError(
            f"no command wrote the store {store}. If a query in Python did, run it again with store_retry, for example "
            "store_retry={'max_tokens': 2048}; if daft-vllm run did, run it again with --store-retry."
        )
    if _HIDDEN in command.arguments:
        raise StoreError(
            f"the command that wrote the store {store} had a secret, which is not kept: run it again with --overwrite "
            "and --store-retry."
        )
    more = ["--overwrite"]
    if changed:
        more += ["--store-retry", json.dumps(changed)]
    if retries is not None:
        more += ["--retries", str(retries)]
    return Command(command.folder, [*command.arguments, "--store", str(folder.resolve()), *more])


@contextlib.contextmanager
def _inside(folder: str) -> Iterator[None]:
    from daft_vllm.errors import StoreError

    try:
        context = contextlib.chdir(folder)
        context.__enter__()
    except OSError as e:
        raise StoreError(f"the job ran in {folder}, which can't be entered: {e.strerror}.") from e
    try:
        yield
    finally:
        context.__exit__(None, None, None)


def _run(context: typer.Context, arguments: list[str]) -> int:
    """Run ``daft-vllm run`` with arguments, and return its exit status."""
    assert context.parent is not None
    commands: Mapping[str, Any] = context.parent.command.commands  # type: ignore[attr-defined]
    token = _is_retry.set(True)
    try:
        return commands["run"].main(args=arguments, prog_name="daft-vllm run", standalone_mode=False) or 0
    finally:
        _is_retry.reset(token)


def _shown(arguments: list[str]) -> str:
    import shlex

    from daft_vllm.wording import visible

    return visible(shlex.join(arguments))
