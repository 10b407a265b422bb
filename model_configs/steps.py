"""The time of one step of an engine on GPUs, by estimate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from daft_vllm.model_configs.memory import MemoryPlan, cache_element_bytes, sequence_bytes
from daft_vllm.model_configs.quantization import Quantization, multiplies, quantization_of
from daft_vllm.model_configs.registry import ModelConfig

_MLA_HEAD = 160
"""Elements of a head while a prompt is read, where heads share one compressed entry: 192 of a key, 128 of a value."""


@dataclass(frozen=True)
class Rates:
    """Which share of its data sheet a card reaches, and what a step costs beside. Fitted, see ``throughput``.

    Args:
        compute: of its 16-bit rate, in large products, before Hopper (compute capability below 9).
        compute_hopper: the same since Hopper.
        compute_experts: how much of that the experts reach: their products are small.
        compute_8: how many times faster products of 8-bit matrices are.
        compute_expanded: how much of it remains where weights of fewer bits are expanded to 16 first.
        compute_mxfp4: the same for experts in mxfp4.
        compute_attention: of the 16-bit rate, in the attention of prompts.
        read: of its bandwidth, for weights that all tokens use.
        read_experts: the same for experts' weights.
        read_experts_4: the same for experts' weights of 4 bits in integers.
        read_cache: the same for the KV cache.
        states: how often each token's hidden states are read or written in a layer.
        send: of the bandwidth between GPUs.
        send_seconds: of each exchange between GPUs, besides.
        step_seconds: of each step, besides.
        layer_seconds: of each layer in a step, besides.
        sequence_seconds: of each sequence in a step, besides: sampling, detokenizing, passing on.
    """

    compute: float = 0.774
    compute_hopper: float = 0.702
    compute_experts: float = 0.711
    compute_8: float = 2.13
    compute_expanded: float = 0.834
    compute_mxfp4: float = 0.675
    compute_attention: float = 0.325
    read: float = 0.943
    read_experts: float = 0.935
    read_experts_4: float = 0.642
    read_cache: float = 0.755
    states: float = 35
    send: float = 0.583
    send_seconds: float = 13e-6
    step_seconds: float = 2.5e-3
    layer_seconds: float = 0.25e-3
    sequence_seconds: float = 32e-6


RATES = Rates()


class StepTime:
    """How long a step of an engine takes.

    Args:
        config: the model's config.
        plan: how its memory is divided over the GPUs.
        args: arguments of vLLM's engine.
        rates: what the cards reach.
    """

    def __init__(self, config: ModelConfig, plan: MemoryPlan, args: Mapping[str, Any], rates: Rates = RATES) -> None:
        self._architecture = architecture = config.architecture
        self._gpus = plan.gpus
        self._rates = rates
        self._element = cache_element_bytes(args)
        card = plan.card
        self._card = card
        hopper = (card.capability or ()) >= (9,) and (card.capability or ()) < (12,)
        self._flops = card.flops * plan.gpus * plan.share
        self._products = self._flops * (rates.compute_hopper if hopper else rates.compute)
        self._bandwidth = card.bandwidth * plan.gpus * plan.share
        quantization = quantization_of(config, args)
        self._faster = _faster(quantization, card.capability or (), rates)

        self._head = architecture.vocabulary * architecture.hidden_size
        active = config.active_parameters or config.parameters
        self._spread = architecture.experts_per_token / architecture.experts if architecture.experts else 1.0
        experts = (config.parameters - active) / (1 - self._spread) if self._spread < 1 else 0.0
        self._experts = experts
        self._dense = max(0.0, config.parameters - experts - architecture.embeddings * self._head)

        weights = plan.weights * plan.gpus
        packed = quantization.weight_bytes if quantization is not None and quantization.weight_bytes else 2.0
        only_experts = quantization is not None and quantization.only_experts
        if quantization is not None and quantization.expert_bytes is not None:
            packed = quantization.expert_bytes
        self._expert_bytes = experts * packed
        self._dense_bytes = max(0.0, weights - self._expert_bytes - 2 * architecture.embeddings * self._head)
        self._dense_faster = 1.0 if only_experts else self._faster
        self._read_experts = rates.read_experts
        if quantization is not None and packed < 0.6 and quantization.activations is None and not only_experts:
            self._read_experts = rates.read_experts_4

    def seconds(self, writing: float, reading: float, prompt: float, output: float, cached: float = 0) -> float:
        """Return the seconds of a step.

        Args:
            writing: sequences that write one token each.
            reading: tokens of prompts.
            prompt: tokens of a prompt.
            output: tokens of an answer.
            cached: tokens of a prompt that are in the cache already.
        """
        rates, architecture = self._rates, self._architecture
        tokens = writing + reading
        total = _product(
            2 * tokens * self._dense / (self._products * self._dense_faster),
            self._dense_bytes / (self._bandwidth * rates.read),
        )
        total += _product(2 * writing * self._head / self._products, 2 * self._head / (self._bandwidth * rates.read))
        if self._experts:
            touched = 1 - (1 - self._spread) ** tokens
            total += _product(
                2 * tokens * self._experts * self._spread / (self._products * rates.compute_experts * self._faster),
                self._expert_bytes * touched / (self._bandwidth * self._read_experts),
            )
        held = sequence_bytes(
            architecture,
            int(prompt + output / 2),
            tensor_parallel=self._gpus,
            element_bytes=self._element,
            batched_tokens=1,
        )
        total += writing * held * self._gpus / (self._bandwidth * rates.read_cache)
        new = max(1.0, prompt - cached)
        total += reading / new * self._attention(prompt, cached) / (self._flops * rates.compute_attention)
        states = tokens * architecture.hidden_size * 2
        total += architecture.layers * states * rates.states * self._gpus / (self._bandwidth * rates.read)
        if self._gpus > 1:  # two sums over all GPUs in each layer, in which each GPU sends everything twice
            sent = 2 * states * (self._gpus - 1) / self._gpus
            total += 2 * architecture.layers * (rates.send_seconds + sent / (self._card.link * rates.send))
        return total + rates.step_seconds + rates.layer_seconds * architecture.layers + rates.sequence_seconds * writing

    def _attention(self, prompt: float, cached: float) -> float:
        """Return the floating point operations of a prompt's attention."""
        total = 0.0
        for kind in self._architecture.cache:
            window = min(kind.window or prompt, prompt)
            pairs = _pairs(prompt, window) - _pairs(cached, window)
            head = _MLA_HEAD if kind.compressed else kind.width / 2
            total += kind.layers * 4 * self._architecture.heads * head * pairs
        return total


def _pairs(tokens: float, window: float) -> float:
    """Return how many pairs of a token and one before it there are, up to ``window`` tokens before it."""
    window = min(window, tokens)
    return tokens * window - window**2 / 2


def _product(computing: float, reading: float) -> float:
    """Return the time of something that computes and reads at once: a little more than the longer of the two."""
    return float((computing**2 + reading**2) ** 0.5)


def _faster(quantization: Quantization | None, capability: tuple[int, ...], rates: Rates) -> float:
    """Return how many times faster than in 16 bits products with the quantized weights are."""
    if quantization is None:
        return 1.0
    if quantization.only_experts and quantization.method == "mxfp4":
        return rates.compute_mxfp4
    return rates.compute_8 if multiplies(quantization.activations, capability) else rates.compute_expanded
