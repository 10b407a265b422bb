"""``prompt``: a language model as a column function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack

import daft

from daft_vllm.errors import OptionError
from daft_vllm.udf.answers.formats import PerRow, Tools
from daft_vllm.udf.columns.files import FileAccess
from daft_vllm.udf.columns.parts import Messages, parts_of, turns_of
from daft_vllm.udf.options import DEFAULT, OPTION_NAMES, PromptOptions, SamplingArguments
from daft_vllm.udf.planning.plan import spec_of
from daft_vllm.udf.worker.expression import actor_expression

BATCH_SIZE = 2048
"""Rows of a batch. With a process of its own an engine has one batch at a time and empties between two of them, which
costs the time of 5 to 9 rows with 64 sequences (``python -m benchmarks.parts.draining``), 0.4% of a batch of this size.
A batch is also what a table is cut into to keep several engines busy."""

MEDIA_BATCH_SIZE = 128
MEDIA_BATCHES = 4
"""Rows of a batch with media, and batches in flight in the driver: twice 256 sequences, and 2 GiB of images of 1 MP."""


def prompt(
    messages: Messages,
    return_format: Any = DEFAULT.return_format,
    *,
    enforce: Literal["strict", "validate"] = DEFAULT.enforce,
    backend: Literal["auto", "xgrammar", "guidance"] = DEFAULT.backend,
    describe_schema: bool = DEFAULT.describe_schema,
    thinking: bool | None = DEFAULT.thinking,
    tools: Sequence[Any] | Tools = DEFAULT.tools,
    tool_choice: str = DEFAULT.tool_choice,
    tool_parser: str | None = DEFAULT.tool_parser,
    parallel_tool_calls: bool = DEFAULT.parallel_tool_calls,
    retries: int = DEFAULT.retries,
    turns: Sequence[tuple[daft.Expression, Messages]] = DEFAULT.turns,
    system_message: str | daft.Expression | None = DEFAULT.system_message,
    examples: Sequence[tuple[str, Any]] = DEFAULT.examples,
    files: FileAccess | None = DEFAULT.files,
    model: str = DEFAULT.model,
    engine_args: Mapping[str, Any] | None = DEFAULT.engine_args,
    goal: str | None = DEFAULT.goal,
    apply_chat_template: bool | None = DEFAULT.apply_chat_template,
    chat_template: str | None = DEFAULT.chat_template,
    chat_template_kwargs: Mapping[str, Any] | None = DEFAULT.chat_template_kwargs,
    truncate_prompt_tokens: int | None = DEFAULT.truncate_prompt_tokens,
    truncation_side: Literal["left", "right"] = DEFAULT.truncation_side,
    adapters: Mapping[str, str] | None = DEFAULT.adapters,
    adapter: str | daft.Expression | None = DEFAULT.adapter,
    gpus: float | None = DEFAULT.gpus,
    use_process: bool | Literal["auto"] = DEFAULT.use_process,
    max_concurrency: int = DEFAULT.max_concurrency,
    batch_size: int | None = DEFAULT.batch_size,
    dedupe: bool = DEFAULT.dedupe,
    on_error: Literal["null", "raise"] = DEFAULT.on_error,
    details: bool = DEFAULT.details,
    stall_timeout: float = DEFAULT.stall_timeout,
    max_restarts: int = DEFAULT.max_restarts,
    progress_folder: str | None = DEFAULT.progress_folder,
    **options: Unpack[SamplingArguments],
) -> daft.Expression:
    """Answer every row's prompt with a model that vLLM runs inside this query.

    Rows in equal rows out, each beside the columns that it came with. A row that cannot be answered is null, with its
    reason in ``details`` and in the log; a null prompt gives a null. Options are checked here, before any model is
    loaded.

    Args:
        messages: a column, or a list of columns: the parts of each row's message, in the order in which the model gets
            them. Text and numbers are text, of which two in a row get a line each; ``lit("...")`` is the same text in
            each row. Images: a column of Daft's image type, of any mode; arrays; ``image(col("path"))`` for paths and
            URLs; bytes and ``daft.File``, which are looked at to see what they hold. Sounds and documents: bytes,
            files, or ``audio(...)`` and ``document(...)``. Each may be a list: several in a row. A column of
            conversations stands alone: lists of structs of ``role`` and ``content``, the latter a text or a list of
            parts as OpenAI has them; the model answers the last message, or goes on with it if it is the assistant's.
        return_format: what each answer has to be; enforced while it is generated and validated after. None or ``str``:
            text. A type as Pydantic understands it (a model, a dataclass, a ``TypedDict``, a ``NamedTuple``,
            ``list[int]``, ``bool``, ...), a JSON Schema (a dict, or the path of a ``.json`` file), a Daft or Arrow type
            or schema: a column of the type that ``daft_vllm.udf.answers.schema.column_type_and_json`` says.
            ``Literal["a", "b"]``, an ``Enum`` with string values or a list of strings: one of them, in a string column.
            ``Regex``, ``Grammar``: text. ``Json``: any JSON, as text. ``Tools``, or a list of functions: one call.
            ``PerRow``: another one for each row.
        enforce: ``"strict"`` (default) refuses a schema of which a part can't be enforced during generation;
            ``"validate"`` leaves that part to the validation after it, which makes an error value of what fails.
        backend: the library that enforces: ``"xgrammar"``, ``"guidance"`` (llguidance), or ``"auto"`` (default):
            xgrammar where it holds all of the format and leaves nothing out, else guidance where that does.
        describe_schema: tell the model the fields, their kinds and descriptions, in the part of the prompt that all
            rows share. Default True; only with the chat template.
        thinking: True: the model thinks before it answers, and ``details`` has its ``reasoning``; needs vLLM's name of
            the model's parser in ``engine_args={"reasoning_parser": "qwen3"}``, for example. False: it is told not to.
            None (default): False with a ``return_format``, else as the model's chat template has it.
        tools: functions that the model may call: Python functions with type hints, Pydantic models, or dicts in
            OpenAI's form. The column is a struct of ``content`` (what the answer says beside, or null) and
            ``tool_calls``, a list of structs of ``name`` and ``arguments`` (JSON text, valid for the tool). Nothing is
            called.
        tool_choice: ``"auto"`` (default): the chat template tells the model of the tools, and it calls them as it was
            trained to, or doesn't; a call that can't be read, of no tool or with wrong arguments is an error value.
            ``"required"``: at least one call, or a tool's name: one call of this; held to the parameters while it is
            written, and told in the prompt as a ``return_format`` is, which works with any model.
        tool_parser: vLLM's name of the parser of the model's calls, ``"hermes"`` for example; ``"auto"`` needs it.
        parallel_tool_calls: False: an answer has one call at most. Default True.
        retries: ask again, up to so many times, for a row that was cut off (with twice the ``max_tokens`` each time) or
            is invalid (drawn anew: with another seed, at a temperature of at least 0.7). Default 0.
        turns: how the conversation goes on after ``messages``: pairs of the column of an answer and the message after
            it, ``[(col("answer"), col("next_question"))]``. What was said before is in the prefix cache, if the engine
            is still open. A row without an answer is not asked.
        system_message: instructions put before every prompt; may be a column. A conversation's own goes before it.
        examples: questions and their answers, told before every prompt: ``[("1 + 1?", "2")]``; an answer may be what
            ``return_format`` describes. In the prefix that all rows share.
        files: from where the files that the columns name may be read. Default: object stores and public HTTP servers;
            no local file.
        model: a folder with a model in Hugging Face format, a name on the hub, or ``"smollm2-135m"`` (the default),
            which the ``demo`` extra carries and which is converted once into the cache folder.
        engine_args: arguments of vLLM's engine by vLLM's names, ``{"max_model_len": 4096}`` for example. Defaults are
            vLLM's, except on a CPU (see ``daft_vllm.engine.setup.environment.default_engine_args``).
        goal: what the job wants most: ``"throughput"`` (as None, the default), ``"long-context"``, ``"images"``,
            ``"text"`` (a model that takes media, for rows without any) or ``"short-job"``; sets ``engine_args`` that
            aren't given. ``daft-vllm config`` shows which.
        apply_chat_template: False sends each string to the model as it is. True: a model without one is an error. None
            (default): the model's, or that of ``chat_template``; a base model, which has none, gets single texts as
            they are, and a warning says so.
        chat_template: Jinja text in place of the model's own chat template.
        chat_template_kwargs: handed to the chat template, ``{"enable_thinking": False}`` for example.
        truncate_prompt_tokens: cut the user's text so that the prompt has at most this many tokens; -1: so that it
            fits the context. None (default): an over-long prompt is an error value.
        truncation_side: the side of the text that is cut, ``"right"`` (default: the end) or ``"left"``.
        adapters: LoRA adapters that share the model: folders, or names on the hub, by names of yours. Loaded with the
            model; the options of vLLM's engine that they need are set.
        adapter: the name of the one that rows use; may be a column, null being the model as it is. Rows of one adapter
            go through the engine one after the other, since adapters share no prefix.
        gpus: GPUs of each engine: 0 for the CPU, a share such as 0.5, or a whole number, which is then the tensor
            parallel size. None (default): 1 where a GPU is visible, else 0.
        use_process: True runs each engine in a process of its own, which gets one batch at a time (on Ray two) and
            keeps the rows' order. False runs one engine in the driver: up to 64 batches are in flight at once, the
            engine never empties between two of them, rows share prefixes across batches, and the model stays loaded for
            the next query; batches come back in the order in which they are done. What is in flight when a query ends
            early (a limit after this column) is still answered. "auto" (default): False for one engine on Daft's
            native runner, else True.
        max_concurrency: engines in all. Default 1.
        batch_size: rows handed to an engine at once. Default 2048, and 128 where the prompt has several parts or is no
            text, of which then 4 batches are in flight: images take memory.
        dedupe: compute rows with the same prompt and options once, where the answer is determined: at temperature 0 or
            with a seed. Default True.
        on_error: ``"null"`` (default): a failed row is null. ``"raise"``: the query fails with ``RowError`` after the
            batch in which a row failed.
        details: True gives a struct: ``value``, ``text`` (what the model wrote), ``finish_reason``, ``prompt_tokens``,
            ``cached_tokens``, ``completion_tokens``, ``queue_seconds``, ``reasoning``, ``error`` (code and reason, or
            null).
        stall_timeout: seconds without a step of vLLM's scheduler after which vLLM is taken for dead. Default 300.
        max_restarts: how often vLLM may be started again in a row, after it died or stalled; its rows are replayed, and
            a row that it dies of again and again is an ``engine_error``. Deaths are forgotten once it has answered 10
            times ``max_num_seqs`` rows after the last one. Default 5; 0: the query fails by the first one.
        progress_folder: a folder in which each engine keeps its counters up to date, one JSON file each.
        **options: sampling options by vLLM's names, with vLLM's defaults except ``temperature=0.0`` and
            ``max_tokens=1024``: temperature, top_p, top_k, min_p, presence_penalty, frequency_penalty,
            repetition_penalty, seed, max_tokens, min_tokens, thinking_token_budget (with ``thinking=True``), stop,
            stop_token_ids, include_stop_str_in_output, ignore_eos, bad_words, logit_bias, allowed_token_ids,
            skip_special_tokens, spaces_between_special_tokens.
            Each may be a column in place of a value: ``max_tokens=col("limit")``; null is the default.

    Returns:
        An expression of the type that ``return_format`` and ``details`` say.

    Raises:
        OptionError: an option is unknown, out of range, or contradicts another.
        SchemaError: ``return_format`` cannot be used.
        ModelError: ``model`` is a folder that isn't there, or isn't a model's.

    Errors that only a worker can find (a model the hub doesn't have, too little memory) end the query when it runs.
    """
    given = {name: value for name, value in locals().items() if name in OPTION_NAMES}
    return prompt_expression(messages, PromptOptions(**given, sampling=options))


def prompt_expression(messages: Messages, options: PromptOptions) -> daft.Expression:
    """Do as ``prompt`` does, with the options in one object."""
    parts, later = parts_of(messages), turns_of(options.turns)
    media = any(len(message) > 1 or message[0].kind != "auto" for message in (parts, *(asked for _, asked in later)))
    use_process = _uses_process(options)
    kinds = [[part.kind for part in asked] for _, asked in later]
    spec = spec_of(options, [part.kind for part in parts], kinds, use_process=use_process)
    columns = [part.column for part in parts]
    for answer, asked in later:
        columns += [answer, *(part.column for part in asked)]
    columns += options.row_sampling.values()
    for column in (options.system_message, options.adapter):
        if isinstance(column, daft.Expression):
            columns.append(column.cast(daft.DataType.string()))
    if isinstance(options.return_format, PerRow):
        columns.append(options.return_format.column.cast(daft.DataType.string()))
    return actor_expression(
        spec,
        columns,
        use_process=use_process,
        engines=options.max_concurrency,
        batch_size=options.batch_size or (MEDIA_BATCH_SIZE if media else BATCH_SIZE),
        max_batches=MEDIA_BATCHES if media else None,
    )


def _uses_process(options: PromptOptions) -> bool:
    """Return whether engines run in processes of their own.

    Raises:
        OptionError: the driver is asked for, and can't have an engine, or not as many.
    """
    on_ray = daft.get_or_infer_runner_type() == "ray"
    if options.use_process == "auto":
        return on_ray or options.max_concurrency > 1
    if not options.use_process and on_ray:
        raise OptionError("use_process=False runs the engine in the driver, which has no place on Ray: leave it out.")
    if not options.use_process and options.max_concurrency > 1:
        raise OptionError("use_process=False runs one engine, in the driver: leave max_concurrency at 1.")
    return options.use_process
