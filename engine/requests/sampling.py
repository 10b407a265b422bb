"""Sampling options by vLLM's names, checked without importing vLLM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

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


_Integer = Annotated[int, Field(ge=-(2**31), lt=2**31)]
"""vLLM keeps these in 32 bits. Its core dies of more."""
_Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class SamplingOptions(BaseModel):
    """How tokens are chosen and when generation stops.

    Names, meanings and ranges are those of vLLM 0.32's ``SamplingParams``, and so are the defaults except two:
    ``temperature`` is 0 (vLLM: 1), so that a job gives the same answers when it is run again, and ``max_tokens`` is
    1024 (vLLM: 16), so that answers are not cut off after a line. This class checks types;
    ``daft_vllm.engine.setup.sampling_rules`` checks ranges, as vLLM does.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    temperature: Annotated[float, Field(description="0 takes the likeliest token each time.")] = 0.0
    top_p: Annotated[float, Field(description="Only the likeliest tokens, up to this probability in all.")] = 1.0
    top_k: Annotated[_Integer, Field(description="Only so many of the likeliest tokens; 0: all.")] = 0
    min_p: Annotated[
        float, Field(description="Only tokens with at least this share of the likeliest one's probability.")
    ] = 0.0
    presence_penalty: Annotated[float, Field(description="Lowers tokens that the answer has already.")] = 0.0
    frequency_penalty: Annotated[float, Field(description="Lowers tokens by how often the answer has them.")] = 0.0
    repetition_penalty: Annotated[
        float, Field(description="Above 1 lowers tokens that the prompt or the answer has.")
    ] = 1.0
    seed: Annotated[_Seed | None, Field(description="Makes random answers repeatable.")] = None
    max_tokens: Annotated[_Integer, Field(description="Longest answer, in tokens.")] = 1024
    min_tokens: Annotated[_Integer, Field(description="Shortest answer, in tokens.")] = 0
    thinking_token_budget: Annotated[_Integer | None, Field(description="Most tokens of thinking.")] = None
    stop: Annotated[str | list[str] | None, Field(description="Texts that end the answer.")] = None
    stop_token_ids: Annotated[list[_Integer] | None, Field(description="Tokens that end the answer.")] = None
    include_stop_str_in_output: Annotated[bool, Field(description="Keep the text that ended the answer.")] = False
    ignore_eos: Annotated[bool, Field(description="Go on after the model's end of text.")] = False
    bad_words: Annotated[list[str] | None, Field(description="Words that the answer may not have.")] = None
    logit_bias: Annotated[
        dict[_Integer, Annotated[float, Field(allow_inf_nan=False)]] | None,
        Field(description="What is added to the logits of tokens, by their ids."),
    ] = None
    allowed_token_ids: Annotated[
        list[_Integer] | None, Field(description="The only tokens that the answer may have.")
    ] = None
    skip_special_tokens: Annotated[bool, Field(description="Leave special tokens out of the text.")] = True
    spaces_between_special_tokens: Annotated[bool, Field(description="Put spaces between special tokens.")] = True

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, values: Any) -> Any:
        """Turn arrays and numbers of numpy, in which some columns hold their cells, into lists and numbers."""
        if not isinstance(values, Mapping):
            return values
        return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in values.items()}

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _by_token(cls, biases: Any) -> Any:
        """Take a cell of a map column, which is a list of pairs, and of a struct or JSON, in which keys are texts."""
        if isinstance(biases, list) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in biases):
            biases = dict(biases)
        if not isinstance(biases, Mapping):
            return biases
        given = {token: bias for token, bias in biases.items() if bias is not None}
        return {int(t) if isinstance(t, str) and t.isdecimal() else t: bias for t, bias in given.items()}

    @field_validator("seed")
    @classmethod
    def _no_seed(cls, seed: int | None) -> int | None:
        return None if seed == -1 else seed  # as in vLLM

    @field_validator("stop", "bad_words")
    @classmethod
    def _encodable(cls, texts: str | list[str] | None) -> str | list[str] | None:
        for text in [texts] if isinstance(texts, str) else texts or ():
            if any("\ud800" <= c <= "\udfff" for c in text):  # vLLM's core can't be sent it
                raise ValueError("a text has half of a surrogate pair, which is no character")
        return texts

    @classmethod
    def of(cls, options: dict[str, Any], *, also_known: tuple[str, ...] = ()) -> SamplingOptions:
        """Check ``options`` and return them.

        Args:
            options: sampling options by name.
            also_known: names of the caller's own options, which a misspelt option may have meant.

        Raises:
            OptionError: an option is unknown or of the wrong type.
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
            OptionError: an option is of the wrong type.
        """
        return SamplingOptions.of({**self.model_dump(exclude_unset=True), **options})

    def over(self, others: Mapping[str, Any]) -> SamplingOptions:
        """Return these options, and others where these were not given.

        Raises:
            OptionError: one of the others is of the wrong type or out of range.
        """
        return SamplingOptions.of({**others, **self.model_dump(exclude_unset=True)})

    @property
    def is_determined(self) -> bool:
        """Whether the same prompt gets the same answer: nothing is drawn at random, or a seed says how."""
        return not (self.temperature > 0 and self.seed is None)

    def resampled(self, attempt: int) -> SamplingOptions:
        """Return options that give another answer at each attempt.

        If the answer is determined (by temperature 0 or a seed), it stays determined: each attempt has its own seed,
        and a temperature of at least 0.7.
        """
        if not self.is_determined:
            return self
        return self.replace({"seed": ((self.seed or 0) + attempt) % 2**63, "temperature": max(self.temperature, 0.7)})


def _problem(error: Mapping[str, Any]) -> str:
    """Return what pydantic found, with the option's name and value unless it is about several options."""
    message = error["msg"].removeprefix("Value error, ")
    return f"option {error['loc'][0]}: {message}, got {error['input']!r:.200}" if error["loc"] else message
