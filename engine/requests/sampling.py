"""Sampling options by vLLM's names, checked without importing vLLM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from daft_vllm.errors import OptionError, suggest

# Options of vLLM's SamplingParams that a column function cannot offer, with the reason.
REFUSED = {
    "n": "a row has one answer: repeat the rows instead",
    "logprobs": "the result column has no place for log-probabilities yet",
    "prompt_logprobs": "the result column has no place for log-probabilities yet",
    "structured_outputs": "use return_format",
    "guided_json": "use return_format",
    "guided_choice": "use return_format",
    "guided_regex": "use return_format",
    "guided_grammar": "use return_format",
}


class SamplingOptions(BaseModel):
    """How tokens are chosen and when generation stops.

    Names, meanings and ranges are those of vLLM 0.32's ``SamplingParams``, and so are the defaults except two:
    ``temperature`` is 0 (vLLM: 1), so that a job gives the same answers when it is run again, and ``max_tokens`` is
    1024 (vLLM: 16), so that answers are not cut off after a line.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    temperature: Annotated[float, Field(ge=0, description="0 takes the likeliest token each time.")] = 0.0
    top_p: Annotated[
        float, Field(gt=0, le=1, description="Only the likeliest tokens, up to this probability in all.")
    ] = 1.0
    top_k: Annotated[int, Field(ge=-1, description="Only so many of the likeliest tokens; 0: all.")] = 0
    min_p: Annotated[
        float, Field(ge=0, le=1, description="Only tokens with at least this share of the likeliest one's probability.")
    ] = 0.0
    presence_penalty: Annotated[float, Field(ge=-2, le=2, description="Lowers tokens that the answer has already.")] = (
        0.0
    )
    frequency_penalty: Annotated[
        float, Field(ge=-2, le=2, description="Lowers tokens by how often the answer has them.")
    ] = 0.0
    repetition_penalty: Annotated[
        float, Field(gt=0, description="Above 1 lowers tokens that the prompt or the answer has.")
    ] = 1.0
    seed: Annotated[int | None, Field(description="Makes random answers repeatable.")] = None
    max_tokens: Annotated[int, Field(ge=1, description="Longest answer, in tokens.")] = 1024
    min_tokens: Annotated[int, Field(ge=0, description="Shortest answer, in tokens.")] = 0
    thinking_token_budget: Annotated[
        Annotated[int, Field(ge=0)] | None, Field(description="Most tokens of thinking.")
    ] = None
    stop: Annotated[str | list[str] | None, Field(description="Texts that end the answer.")] = None
    stop_token_ids: Annotated[list[int] | None, Field(description="Tokens that end the answer.")] = None
    include_stop_str_in_output: Annotated[bool, Field(description="Keep the text that ended the answer.")] = False
    ignore_eos: Annotated[bool, Field(description="Go on after the model's end of text.")] = False
    bad_words: Annotated[list[str] | None, Field(description="Words that the answer may not have.")] = None
    logit_bias: Annotated[
        dict[int, float] | None, Field(description="What is added to the logits of tokens, by their ids.")
    ] = None
    allowed_token_ids: Annotated[list[int] | None, Field(description="The only tokens that the answer may have.")] = (
        None
    )
    skip_special_tokens: Annotated[bool, Field(description="Leave special tokens out of the text.")] = True
    spaces_between_special_tokens: Annotated[bool, Field(description="Put spaces between special tokens.")] = True

    @model_validator(mode="after")
    def _tokens_in_order(self) -> SamplingOptions:
        if self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens={self.min_tokens} is greater than max_tokens={self.max_tokens}")
        return self

    @classmethod
    def of(cls, options: dict[str, Any], *, also_known: tuple[str, ...] = ()) -> SamplingOptions:
        """Check ``options`` and return them.

        Args:
            options: sampling options by name.
            also_known: names of the caller's own options, which a misspelt option may have meant.

        Raises:
            OptionError: an option is unknown, of the wrong type or out of range.
        """
        cls.check_names(options, also_known=also_known)
        try:
            return cls(**options)
        except ValidationError as e:
            raise OptionError("; ".join(map(_problem, e.errors()))) from None

    @classmethod
    def check_names(cls, names: Iterable[str], *, also_known: tuple[str, ...] = ()) -> None:
        """Raise ``OptionError`` for a name that is no sampling option; arguments as in ``of``."""
        for name in names:
            if name in REFUSED:
                raise OptionError(f"option {name!r} is not available here: {REFUSED[name]}.")
            if name not in cls.model_fields:
                raise OptionError(
                    f"unknown option {name!r}.{suggest(name, [*cls.model_fields, *also_known])} "
                    f"Sampling options: {', '.join(cls.model_fields)}. "
                    "Options of the engine (max_model_len, dtype, ...) go into engine_args={...}."
                )

    def replace(self, options: dict[str, Any]) -> SamplingOptions:
        """Return these options with some of them replaced.

        Raises:
            OptionError: an option is of the wrong type or out of range.
        """
        return SamplingOptions.of({**self.model_dump(exclude_unset=True), **options})

    def resampled(self, attempt: int) -> SamplingOptions:
        """Return options that give another answer at each attempt.

        If the answer is determined (by temperature 0 or a seed), it stays determined: each attempt has its own seed,
        and a temperature of at least 0.7.
        """
        if self.temperature > 0 and self.seed is None:
            return self
        return self.replace({"seed": (self.seed or 0) + attempt, "temperature": max(self.temperature, 0.7)})


def _problem(error: Mapping[str, Any]) -> str:
    """Return what pydantic found, with the option's name and value unless it is about several options."""
    message = error["msg"].removeprefix("Value error, ")
    return f"option {error['loc'][0]}: {message}, got {error['input']!r}" if error["loc"] else message
