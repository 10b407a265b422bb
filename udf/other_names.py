"""What other libraries call an option of ``prompt()``, and what it is here."""

from __future__ import annotations

from collections.abc import Mapping

_NAMES = {
    "return_format": "schema json_schema response_format response_model response_schema response_type output_schema "
    "output_type output_format return_type return_dtype format choices choice options labels enum guided_decoding "
    "guided_options structured_output json_mode json pydantic_model type",
    "return_format=Regex(...)": "regex pattern",
    "return_format=Grammar(...)": "grammar ebnf",
    "system_message": "system system_prompt system_msg system_instruction instructions instruction role",
    "examples": "few_shot fewshot few_shot_examples shots demonstrations",
    "model": "model_name model_id model_path model_name_or_path llm checkpoint repo_id",
    "max_tokens": "max_new_tokens max_completion_tokens max_output_tokens max_tokens_to_sample max_length "
    "num_predict n_predict max_gen_len generation_length",
    "min_tokens": "min_new_tokens min_length",
    "temperature": "temp",
    "temperature above 0 (temperature=0.7)": "do_sample sample",
    "stop": "stop_sequences stop_strings stop_words stop_sequence stop_token stops until",
    "stop_token_ids": "eos_token_id eos_token_ids stop_ids",
    "seed": "random_seed random_state",
    "repetition_penalty": "repeat_penalty rep_penalty",
    "bad_words": "bad_words_ids banned_words banned_strings",
    "gpus": "num_gpus n_gpus gpu gpu_count gpus_per_engine",
    "gpus=0 for the CPU": "device device_map cpu",
    "max_concurrency": "concurrency engines num_engines workers num_workers replicas num_replicas",
    "batch_size": "batch max_batch_size rows_per_batch",
    "retries": "max_retries num_retries retry",
    "thinking": "enable_thinking reasoning think reasoning_effort",
    "thinking_token_budget": "thinking_budget reasoning_budget budget_tokens max_thinking_tokens",
    "tools": "functions function tool",
    "tool_choice": "function_call",
    "adapters": "lora lora_path lora_adapters lora_request lora_modules",
    "truncate_prompt_tokens": "truncate truncation max_input_tokens max_prompt_tokens",
    "chat_template_kwargs": "chat_template_args template_kwargs",
    "turns": "history conversation",
    "on_error": "ignore_errors raise_on_error errors",
    "stall_timeout": "timeout request_timeout",
    "dedupe": "dedup deduplicate",
    "skip_blank": "skip_empty",
    "use_process=True, which keeps the order of the rows": "keep_order ordered preserve_order",
    "engine_args": "engine_kwargs llm_kwargs model_kwargs vllm_args vllm_kwargs engine_config engine_options",
    "engine_args={'max_model_len': ...}": "max_seq_len max_seq_length context_length context_window num_ctx n_ctx "
    "max_context_len",
    "engine_args={'tensor_parallel_size': ...}, or gpus": "tp tp_size tensor_parallel num_shard",
    "engine_args={'dtype': ...}": "torch_dtype precision",
    "engine_args={'quantization': ...}": "load_in_4bit load_in_8bit quantize",
    "engine_args={'gpu_memory_utilization': ...}": "gpu_memory mem_fraction_static",
    "engine_args={'download_dir': ...}": "cache_dir",
    "image(col(...)) in messages": "images image image_column",
    "df.with_column(name, prompt(...))": "column output_column column_name",
    "details=True, which has the reasons of failures": "error_column",
    "DAFT_PROGRESS_BAR=0 to hide the progress": "progress show_progress verbose use_tqdm tqdm",
    "each sampling option by its name (temperature=, max_tokens=)": "sampling_params sampling sampling_options "
    "extra_body generation_kwargs sampling_kwargs gen_kwargs",
}
OTHER_NAMES: Mapping[str, str] = {other: ours for ours, others in _NAMES.items() for other in others.split()}
"""For each name that people try: what to write."""
NOT_HERE: Mapping[str, str] = {
    **dict.fromkeys(("best_of", "num_return_sequences"), "a row has one answer: repeat the rows instead"),
    **dict.fromkeys(("use_beam_search", "num_beams", "beam_width"), "vLLM draws tokens, and searches no beams"),
    **dict.fromkeys(
        ("api_key", "base_url", "api_base", "endpoint", "provider"), "the model runs in this query: give model alone"
    ),
    **dict.fromkeys(("stream", "echo", "user", "typical_p", "length_penalty"), "leave it out"),
}
"""For each name of what there isn't: why, or what to do."""
