"""``prompt``: a language model as a column function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal, Unpack

import daft

from daft_vllm.engine.constraints.constraint import BackendChoice
from daft_vllm.errors import OptionError
from daft_vllm.udf.answers.formats import PerRow, Tools
from daft_vllm.udf.columns.files import FileAccess
from daft_vllm.udf.columns.parts import Messages, parts_of, turns_of
from daft_vllm.udf.options import DEFAULT, OPTION_NAMES, PromptOptions, SamplingArguments
from daft_vllm.udf.planning.plan import spec_of
from daft_vllm.udf.planning.room import check_room, engines_of
from daft_vllm.udf.planning.store import with_store
from daft_vllm.udf.preflight.connection import on_ray
from daft_vllm.udf.progress.board import collect_into
from daft_vllm.udf.progress.queries import new_folder, show_progress_of, wants_display
from daft_vllm.udf.progress.repeats import hide_repeats
from daft_vllm.udf.worker.expression import actor_expression

BATCH_SIZE = 2048
"""Rows of a batch. An engine in a process of its own has one batch at a time, and runs empty between two batches. That
costs the time of 5 to 9 rows with 64 sequences (``python -m benchmarks.parts.draining``), 0.4% of a batch of this size.
Larger batches cost less, but a table needs enough batches to keep several engines busy."""

MEDIA_BATCH_SIZE = 128
"""Rows of a batch with media."""

_BATCHES = 64
"""Batches in flight in the driver, at least: Daft's own number for a coroutine."""

_ENGINE_BATCHES = 8
"""Batches in flight in the driver for each engine. All of them end at about the same time, when the engines have gone
through the prefixes once, so an engine needs many rows: with 1,024 rows for each of 128 engines a job takes 2.3% longer
than if they know all rows (``python -m benchmarks.cluster --trace blog --policy live``, with ``--batches 64``)."""

_ENGINE_MEDIA_BATCHES = 4
"""The same for batches with media. These are twice as many rows as 256 sequences, and 2 GiB of images of 1 MP."""


def batches_in_flight(engines: int, *, media: bool) -> int:
    """Return how many batches are in flight in the driver.

    Args:
        engines: in the driver.
        media: whether prompts may have media.
    """
    return _ENGINE_MEDIA_BATCHES * engines if media else max(_BATCHES, _ENGINE_BATCHES * engines)


def prompt(
    messages: Messages,
    return_format: Any = DEFAULT.return_format,
    *,
    enforce: Literal["strict", "validate"] = DEFAULT.enforce,
    backend: BackendChoice = DEFAULT.backend,
    describe_schema: bool = DEFAULT.describe_schema,
    thinking: bool | None = DEFAULT.thinking,
    recommended_sampling: bool = DEFAULT.recommended_sampling,
    tools: Sequence[Any] | Tools = DEFAULT.tools,
    tool_choice: str = DEFAULT.tool_choice,
    tool_parser: str | None = DEFAULT.tool_parser,
    parallel_tool_calls: bool = DEFAULT.parallel_tool_calls,
    retries: int = DEFAULT.retries,
    turns: Sequence[tuple[daft.Expression, Messages]] = DEFAULT.turns,
    skip_blank: bool = DEFAULT.skip_blank,
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
    reproducible: bool = DEFAULT.reproducible,
    draft: Literal["on", "off"] = DEFAULT.draft,
    use_process: bool | Literal["auto"] = DEFAULT.use_process,
    max_concurrency: int | Literal["auto"] = DEFAULT.max_concurrency,
    ray_options: Mapping[str, Any] | None = DEFAULT.ray_options,
    batch_size: int | None = DEFAULT.batch_size,
    dedupe: bool = DEFAULT.dedupe,
    on_error: Literal["null", "raise"] = DEFAULT.on_error,
    details: bool = DEFAULT.details,
    stall_timeout: float = DEFAULT.stall_timeout,
    max_restarts: int = DEFAULT.max_restarts,
    row_timeout: float | None = DEFAULT.row_timeout,
    deadline: datetime | str | None = DEFAULT.deadline,
    store: str | None = DEFAULT.store,
    store_changed: bool = DEFAULT.store_changed,
    store_retry: Mapping[str, Any] | None = DEFAULT.store_retry,
    row_key: daft.Expression | None = DEFAULT.row_key,
    progress_folder: str | None = DEFAULT.progress_folder,
    **options: Unpack[SamplingArguments],
) -> daft.Expression:
    """Answer every row's prompt with a model that vLLM runs inside this query.

    The result has one value for each row, beside the row's other columns. A row that cannot be answered is null;
    ``details`` and the log give the reason. A null prompt gives a null. Options are checked here, before any model is
    loaded.

    Args:
        messages: a column, or a list of columns: the parts of each row's message, in the order in which the model gets
            them. Text and numbers are text; two texts next to each other are joined by a line break. ``lit("...")`` is
            the same text in each row. Images: a column of Daft's image type, of any mode; arrays;
            ``image(col("path"))`` for paths and URLs; bytes and ``daft.File``, if their content or name shows that they
            are images. Sounds and documents: bytes, files, or ``audio(...)`` and ``document(...)``. Each value may be a
            list of several. A column of conversations is used alone: lists of structs of ``role`` and ``content``. The
            content is a text, or a list of parts in OpenAI's form. The model answers the last message. If that is the
            assistant's, the model continues it.
        return_format: what each answer has to be; enforced while it is generated, and validated afterwards. None or
            ``str``: text. A type that Pydantic understands (a model, a dataclass, a ``TypedDict``, a ``NamedTuple``,
            ``list[int]``, ``bool``, ...), a JSON Schema (a dict, or the path of a ``.json`` file), a Daft or Arrow type
            or schema: a column of the type that ``daft_vllm.udf.answers.schema.column_type_and_json`` gives.
            ``Literal["a", "b"]``, an ``Enum`` with string values or a list of strings: one of them, in a string column.
            ``Regex``, ``Grammar``: text. ``Json``: any JSON, as text. ``Tools``, or a list of functions: one call.
            ``PerRow``: each row has its own format.
        enforce: ``"strict"`` (default) refuses a schema if part of it can't be enforced during generation.
            ``"validate"`` checks that part after generation: an answer that fails is an error value.
        backend: the library that enforces the format: ``"xgrammar"``, ``"guidance"`` (llguidance), or ``"auto"``
            (default): xgrammar if it enforces the whole format and allows all that the format allows, else guidance if
            guidance does.
        describe_schema: describe the fields, their kinds and their descriptions to the model, in the part of the prompt
            that all rows share. Default True; only with the chat template.
        thinking: True: the model thinks before it answers, and ``details`` has its ``reasoning``. This needs vLLM's
            name of the model's parser in ``engine_args={"reasoning_parser": "qwen3"}``, for example. False: the chat
            template is asked to turn thinking off. None (default): False with ``tools`` or a ``return_format`` other
            than text, else the model's chat template decides.
        recommended_sampling: True: sampling options that aren't given are those that the model's makers recommend, for
            answers with thinking or for answers without, whichever this job has. ``daft-vllm config`` shows them. It is
            an error if the makers recommend none, or if daft-vllm doesn't describe the model. Default False.
        tools: functions that the model may call: Python functions with type hints, Pydantic models, or dicts in
            OpenAI's form. The column is a struct of ``content`` (the text beside the calls, or null) and
            ``tool_calls``, a list of structs of ``name`` and ``arguments`` (JSON text, valid for the tool). daft-vllm
            itself calls no function.
        tool_choice: ``"auto"`` (default): the chat template describes the tools to the model. The model was trained to
            call tools, and decides whether to. A call is an error value if it can't be read, names an unknown tool, or
            has wrong arguments. ``"required"``: at least one call. A tool's name: one call of this tool. With these two
            the calls are enforced and described in the prompt as a ``return_format`` is, which works with any model.
        tool_parser: vLLM's name of the parser of the model's calls, ``"hermes"`` for example; ``"auto"`` needs it.
        parallel_tool_calls: False: an answer has one call at most. Default True.
        retries: how often to ask again for a row that was cut off (with twice the ``max_tokens`` each time) or is
            invalid (with another seed, at a temperature of at least 0.7). Default 0.
        turns: how the conversation continues after ``messages``: pairs of the column of an answer and the message after
            it, ``[(col("answer"), col("next_question"))]``. The earlier messages are in the prefix cache, if the engine
            is still open. A row without an answer is not asked.
        skip_blank: a text that is empty or white space counts as null: its row gets no answer. Default False: the model
            is asked. A conversation is blank if its last message is.
        system_message: instructions put before every prompt; may be a column. If a conversation begins with a system
            message, that one is used instead.
        examples: questions and their answers, put before every prompt: ``[("1 + 1?", "2")]``. An answer may be a value
            that ``return_format`` describes. Examples are part of the prefix that all rows share.
        files: says where the files that the columns name may be read from. Default: object stores and public HTTP
            servers; no local files.
        model: a folder with a model in Hugging Face format, a name on the hub, or ``"smollm2-135m"`` (the default). The
            ``demo`` extra contains that model. It is converted once, into the cache folder.
        engine_args: arguments of vLLM's engine by vLLM's names, ``{"max_model_len": 4096}`` for example. Defaults are
            vLLM's, except on a CPU (see ``daft_vllm.engine.setup.environment.default_engine_args``).
        goal: what matters most for the job: ``"throughput"`` (None, the default, means the same), ``"long-context"``,
            ``"images"``, ``"text"`` (a model that takes media, for rows without media) or ``"short-job"``. It sets
            ``engine_args`` that aren't given. ``daft-vllm config`` shows them.
        apply_chat_template: False sends each string to the model as it is. True: a model without a chat template is an
            error. None (default): the model's template, or ``chat_template``, is applied. A base model, which has no
            template, gets single texts as they are, and a warning says so.
        chat_template: Jinja text that replaces the model's own chat template.
        chat_template_kwargs: arguments for the chat template, ``{"enable_thinking": False}`` for example.
        truncate_prompt_tokens: cut the user's text so that the prompt has at most this many tokens; -1: so that it
            fits the context. None (default): a prompt that is too long is an error value.
        truncation_side: the side of the text that is cut, ``"right"`` (default: the end) or ``"left"``.
        adapters: LoRA adapters that share the model, by names that you choose: folders, or names on the hub. They are
            loaded with the model. The engine arguments that they need are set.
        adapter: the name of the adapter that rows use; may be a column. Null: the model without an adapter. Rows of one
            adapter go through the engine one after the other, because rows of different adapters share no prefix.
        gpus: GPUs of each engine: 0 for the CPU, a share such as 0.5, or a whole number, which is then the tensor
            parallel size. None (default): 1 if a GPU is visible, else 0.
        reproducible: True: a row's answer is the same bytes whatever other rows there are, in whatever order and steps
            they are computed, and when the job runs again. For that the machine (its processor and number of cores, or
            the kind and number of its GPUs), the model, the options, and the releases of vLLM, torch and daft-vllm have
            to be the same, and rows with a temperature need a ``seed``. On GPUs this is vLLM's
            batch-invariant mode, which needs compute capability 8.0; on a CPU the model computes in float32. It takes
            more time, and is an error for models, quantizations and engine arguments with which it can't be had; rows
            with pictures or sounds are error values. The prompt counts as part of the row: chat templates that write
            today's date make another prompt tomorrow. Default False.
        draft: ``"on"``: tokens of answers with a ``return_format`` are guessed where a guess is likely to be right, and
            vLLM verifies all guesses of a row in one step: keys of a schema, what earlier rows wrote, what is copied
            from the prompt. At temperature 0 the answers are the same, at other temperatures they have the same
            distribution. Rows with a seed and a temperature get no guesses, nor do rows with ``min_p``, ``logit_bias``,
            ``bad_words`` or ``thinking_token_budget``. On a CPU only; an error with GPUs, ``adapters``,
            ``reproducible`` or a ``speculative_config``. Default ``"off"``.
        use_process: True runs each engine in a process of its own. It gets one batch at a time (on Ray two), and rows
            keep their order. False runs the engines behind one queue in the driver. 64 batches are in flight at once
            (with more than 8 engines, 8 for each), so no engine runs empty between two batches. Rows share prefixes
            across batches, and the model stays loaded for the next query. Batches come back in the order in which they
            are done. If a query ends early (by a limit after this column), rows in flight are still answered. "auto"
            (default): False on Daft's native runner, True on Ray.
        max_concurrency: engines in all. Default 1. ``"auto"``: as many as the visible GPUs (on Ray, those of the
            cluster) are enough for, one on a CPU. In the driver they take rows from one queue, each as soon as it is
            loaded; rows that share a prefix go to the same one. More engines than there is room for are an error here.
        ray_options: on Ray, options of the actor that each engine is, by the names of Ray's ``ActorClass.options``:
            ``{"resources": {"a100": 1}}``, ``{"num_cpus": 4}`` (Daft's own default is 1), ``label_selector`` and so on.
            Of a ``runtime_env`` Daft takes ``conda`` only. Default: none.
        batch_size: rows sent to an engine at once. Default 2048; 128 if a message has several parts, or is marked with
            ``image``, ``audio`` or ``document``. In the driver 4 batches of such messages are in flight for each
            engine, because images take memory.
        dedupe: compute rows with the same prompt and options once, if the answer is determined: at temperature 0 or
            with a seed. Default True.
        on_error: ``"null"`` (default): a failed row is null. ``"raise"``: the query fails with ``RowError`` after the
            batch in which a row failed.
        details: True gives a struct: ``value``, ``text`` (what the model wrote), ``finish_reason``, ``prompt_tokens``,
            ``cached_tokens``, ``completion_tokens``, ``queue_seconds``, ``reasoning``, ``error`` (code and reason, or
            null). A row that is not asked is no failure: its ``error`` is null, and its ``finish_reason`` says why,
            ``null_prompt`` or (with ``skip_blank``) ``blank_prompt``.
        stall_timeout: if vLLM's scheduler makes no step for this many seconds, vLLM counts as dead. Default 300.
        max_restarts: how often in a row vLLM may be started again after it died or stalled. The rows that were inside
            it are sent again. A row that kills vLLM again and again is an ``engine_error``. The count begins again once
            10 times ``max_num_seqs`` rows were answered after the last death. Default 5; 0: the query fails at the
            first death.
        row_timeout: how many seconds a row may be inside vLLM, the wait for its first step included. Then its error is
            ``timeout``, and its place is free for another row. Time in which vLLM makes no step doesn't count against
            a row, see ``stall_timeout``. Default: any time.
        deadline: a ``datetime``, or a text such as ``"2026-12-01T06:00"``; without a zone it is a local time. Rows that
            have no answer then get the error ``deadline``, within a second, and the query ends. With ``store`` the
            same query computes them later. Default: none.
        store: a folder that all workers reach, or a URL of an object store (``s3://``, ``gs://``, ``abfs://``), whose
            credentials are those of each process's environment. Each answer is written to it before it is handed on. If
            the query ends early, whatever the reason, the same query with the same store computes only the rows that
            have no answer there; sampled rows get the answers that they got. If all have one, the model isn't even
            loaded. A file or URL in a row is known by its name, not by its content. Default: none.
        store_changed: use the store although the model, the prompt, the format or an option differs from what was asked
            before. Rows that ask something else are computed, and equal ones are not. Default False: it is refused.
        store_retry: sampling options, ``{"max_tokens": 2048}`` for example, with which rows are asked again that failed
            when the query ran before: those without an answer, cut off, or invalid. All others get their stored
            answers, and no model is loaded if no row failed. A new answer takes the place of the failed one: the query
            without ``store_retry`` then gets it too. A row that fails again keeps what it had. Default: none.
        row_key: a column that names each row in the store, ``col("id")`` for example. ``daft-vllm show`` and ``report``
            show the names. Rows with different names never share an answer of the store, although they ask the same;
            without names they may, if several engines draw answers at random. It becomes text. Null: the row has no
            name. Rows with the same name that ask the same are treated as rows without one. Default: none.
        progress_folder: a folder of this machine in which each process with engines keeps its counters up to date, in a
            JSON file of its own, while the folder is there. ``daft-vllm top --folder`` shows them. On Ray the engines
            may be on any node.
        **options: sampling options by vLLM's names, with vLLM's defaults except ``temperature=0.0`` and
            ``max_tokens=1024``: temperature, top_p, top_k, min_p, presence_penalty, frequency_penalty,
            repetition_penalty, seed, max_tokens, min_tokens, thinking_token_budget (with ``thinking=True``), stop,
            stop_token_ids, include_stop_str_in_output, ignore_eos, bad_words, logit_bias, allowed_token_ids,
            skip_special_tokens, spaces_between_special_tokens.
            Each may be a column instead of a value: ``max_tokens=col("limit")``. Null: the default. With one ``seed``
            for all rows, each row draws by a seed of its own, made from this one and its prompt; a column of seeds is
            used as given.

    Returns:
        An expression of the type that ``return_format`` and ``details`` give.

    Raises:
        OptionError: an option is unknown, out of range, or contradicts another.
        SchemaError: ``return_format`` cannot be used.
        ModelError: ``model`` is a folder that isn't there, or isn't a model's.
        DeviceError: there is no room for the engines, on this machine or on the nodes of the Ray cluster; or no cluster
            answers.

    Errors that only a worker can find (a model the hub doesn't have, too little memory) end the query when it runs.
    """
    given = {name: value for name, value in locals().items() if name in OPTION_NAMES}
    return prompt_expression(messages, PromptOptions(**given, sampling=options))


def prompt_expression(messages: Messages, options: PromptOptions) -> daft.Expression:
    """Do as ``prompt`` does, with the options in one object."""
    parts, later = parts_of(messages), turns_of(options.turns)
    media = any(len(message) > 1 or message[0].kind != "auto" for message in (parts, *(asked for _, asked in later)))
    use_process = uses_process(options)
    hide_repeats()
    shown = options.progress_folder is None and wants_display()
    if shown:
        options = replace(options, progress_folder=new_folder())
    kinds = [[part.kind for part in asked] for _, asked in later]
    spec = spec_of(options, [part.kind for part in parts], kinds, use_process=use_process)
    columns = [part.column for part in parts]
    engines = engines_of(options.max_concurrency, spec.engine.gpus, options.ray_options)
    check_room(engines, spec.engine.gpus, options.ray_options, stored=options.store is not None)
    spec = with_store(spec, options, columns)
    if options.progress_folder is not None and on_ray():
        spec = replace(spec, board=collect_into(options.progress_folder))
    for answer, asked in later:
        columns += [answer, *(part.column for part in asked)]
    columns += options.row_sampling.values()
    for column in (options.system_message, options.adapter):
        if isinstance(column, daft.Expression):
            columns.append(column.cast(daft.DataType.string()))
    if isinstance(options.return_format, PerRow):
        columns.append(options.return_format.column.cast(daft.DataType.string()))
    if options.row_key is not None:
        columns.append(options.row_key.cast(daft.DataType.string()))
    expression = actor_expression(
        spec,
        columns,
        use_process=use_process,
        engines=engines,
        ray_options=options.ray_options,
        batch_size=options.batch_size or (MEDIA_BATCH_SIZE if media else BATCH_SIZE),
        max_batches=batches_in_flight(engines, media=media),
    )
    if shown and options.progress_folder is not None:
        show_progress_of(expression, str(options.model), options.progress_folder)
    return expression


def uses_process(options: PromptOptions) -> bool:
    """Return whether engines run in processes of their own.

    Raises:
        OptionError: ``use_process`` is False on Ray; ``ray_options`` are given elsewhere; or ``files`` has credentials,
            which aren't sent elsewhere.
    """
    ray = on_ray()
    if options.ray_options is not None and not ray:
        raise OptionError(
            "ray_options are for Ray, and Daft runs its queries on this machine: call daft.set_runner_ray() before, or "
            "leave them out."
        )
    wanted = ray if options.use_process == "auto" else options.use_process
    if wanted and options.files is not None:
        options.files.check_sent()
    if not wanted and ray:
        raise OptionError("use_process=False runs the engine in the driver, which can't be done on Ray: leave it out.")
    return wanted
