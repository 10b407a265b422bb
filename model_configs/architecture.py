"""The parts of a model's config that decide how much memory it takes and how fast it can be."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from daft_vllm.model_configs.packed import PackedCache, looked_at, packed_cache

_MINIMAX_SPARSE = "minimax_m3_sparse"
"""What transformers calls MiniMax-M3's layers that look at some blocks of the cache only. All of it is kept."""


@dataclass(frozen=True)
class CacheLayers:
    """Layers with the same kind of KV cache.

    Args:
        layers: how many there are.
        heads: KV heads. 1 where all heads share one compressed entry (MLA); every GPU then keeps the whole entry.
        width: elements that a head keeps for each token: those of its key and of its value.
        window: tokens that are kept. None: all.
        fixed: bytes that a token takes beside them, whatever the cache's type and on every GPU: the key of an indexer.
        compressed: whether all heads share one compressed entry (MLA).
    """

    layers: int
    heads: int
    width: int
    window: int | None = None
    fixed: int = 0
    compressed: bool = False


@dataclass(frozen=True)
class Encoder:
    """A model's image encoder.

    Args:
        hidden_size: its width.
        intermediate_size: width of its MLP.
        gated: whether its MLP is gated.
        rotary: whether positions are rotated into its queries and keys.
        patches_per_token: patches of an image that one token of the language model stands for.
        largest_image: tokens of the largest image that isn't scaled down. 0: all images take only a few hundred.
    """

    hidden_size: int
    intermediate_size: int
    gated: bool
    rotary: bool
    patches_per_token: int
    largest_image: int


@dataclass(frozen=True)
class Architecture:
    """The numbers of a model that planning needs.

    Args:
        name: the class as ``config.json`` names it, ``"Qwen3ForCausalLM"`` for example.
        layers: transformer layers of the language model.
        hidden_size: width of the language model.
        intermediate_size: width of its widest MLP.
        heads: attention heads.
        vocabulary: tokens.
        embeddings: matrices of size vocabulary x hidden_size: 1 where input and output share one, else 2.
        cache: its layers with a cache, by kind.
        packed: how its layers share blocks. The windows in ``cache`` are then what a token looks at. None: they don't.
        state_bytes: bytes of the fixed-size state that a sequence keeps in layers without a KV cache. 0: there are no
            such layers.
        state_page: bytes that one of those layers keeps, with what its convolution remembers.
        max_model_len: longest context, in tokens.
        experts: experts of an MoE layer. 0: it has none.
        experts_per_token: experts that a token goes through.
        expert_size: width of an expert's MLP.
        takes: what the model takes besides text: ``"image"``, ``"audio"``.
        encoder: its image encoder. None: it has none, or one that isn't made of attention.
        divided: what vLLM divides evenly among the GPUs of an engine: each count or width, by its name.
    """

    name: str
    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    vocabulary: int
    embeddings: int
    cache: tuple[CacheLayers, ...]
    state_bytes: int
    state_page: int
    max_model_len: int
    experts: int = 0
    experts_per_token: int = 0
    expert_size: int = 0
    takes: tuple[str, ...] = ()
    encoder: Encoder | None = None
    divided: Mapping[str, int] = field(default_factory=dict)
    packed: PackedCache | None = None


def architecture_of(config: Any) -> Architecture:
    """Read a Hugging Face config (``transformers.PretrainedConfig``)."""
    text = config.get_text_config()
    names = getattr(config, "architectures", None) or [type(config).__name__]
    tied = getattr(config, "tie_word_embeddings", None)
    if tied is None:
        tied = getattr(text, "tie_word_embeddings", False)
    experts = getattr(text, "num_experts", None) or getattr(text, "num_local_experts", None) or 0
    moe_width = getattr(text, "moe_intermediate_size", None) or (_largest(text.intermediate_size) if experts else 0)
    widest = (getattr(text, "intermediate_size", 0), getattr(text, "dense_intermediate_size", 0), moe_width)
    return Architecture(
        name=names[0],
        layers=text.num_hidden_layers,
        hidden_size=text.hidden_size,
        intermediate_size=max(map(_largest, widest)),
        heads=text.num_attention_heads,
        vocabulary=text.vocab_size,
        embeddings=1 if tied else 2,
        cache=_cache_layers(text),
        state_bytes=_state_bytes(text),
        state_page=_state_page(text),
        max_model_len=text.max_position_embeddings,
        experts=experts,
        experts_per_token=getattr(text, "num_experts_per_tok", None) or getattr(text, "top_k_experts", None) or 0,
        expert_size=moe_width,
        takes=media_of_config(config),
        encoder=_encoder(config),
        divided=_divided(text, experts, moe_width),
        packed=packed_cache(text),
    )


def _divided(text: Any, experts: int, expert_size: int) -> dict[str, int]:
    """Return what vLLM divides among GPUs and refuses to divide unevenly (``vllm.distributed.utils.divide``)."""
    dense = not experts or bool(getattr(text, "first_k_dense_replace", 0))
    mamba = getattr(text, "mamba_n_heads", 0) or getattr(text, "mamba_num_heads", 0)
    groups = (getattr(text, "mamba_n_groups", 0) or getattr(text, "n_groups", 0)) if mamba else 1
    found = {
        "attention heads": text.num_attention_heads,
        "columns of its MLP": _largest(getattr(text, "intermediate_size", 0)) if dense else 0,
        "columns of an expert": expert_size,
        "groups of its output projection": getattr(text, "o_groups", 0),
        "key heads of linear attention": getattr(text, "linear_num_key_heads", 0),
        "value heads of linear attention": getattr(text, "linear_num_value_heads", 0),
        "heads of its Mamba layers": mamba,
        "groups of its Mamba layers": groups if groups > 1 else 0,
    }
    return {name: int(number) for name, number in found.items() if number}


def media_of_config(config: Any) -> tuple[str, ...]:
    """Return what a model with this Hugging Face config takes besides text."""
    if config.model_type == "kimi_k25":  # its images are vLLM's "vision_chunk"s, which requests can't have yet
        return ()
    parts = (("image", "vision_config"), ("audio", "audio_config"))
    return tuple(kind for kind, part in parts if getattr(config, part, None))


def _encoder(config: Any) -> Encoder | None:
    vision = getattr(config, "vision_config", None)
    if (
        vision is not None and config.model_type == "deepseek_ocr2"
    ):  # SAM looks at all of an image; what follows it, at a 16th
        sam = vision.sam_config
        return Encoder(sam.hidden_size, sam.mlp_dim, gated=False, rotary=False, patches_per_token=16, largest_image=0)
    if vision is None or not getattr(vision, "intermediate_size", None):
        return None
    merged = getattr(vision, "spatial_merge_size", None) or getattr(config, "spatial_merge_size", None)
    merged = merged or getattr(vision, "pooling_kernel_size", None) or getattr(config, "scale_factor", None)
    merged = merged or (getattr(vision, "merge_kernel_size", None) or [None])[0]
    shrunk = getattr(config, "downsample_ratio", None) or getattr(vision, "pixel_shuffle_ratio", None) or 1
    merged = merged or round(1 / shrunk)
    patches, largest = merged**2, 0
    if getattr(config, "mm_tokens_per_image", None):  # Gemma-3
        patches = (vision.image_size // vision.patch_size) ** 2 // config.mm_tokens_per_image
    elif config.model_type == "minicpmv4_6":  # merged within the encoder, and once more after it
        patches = (vision.window_kernel_size[0] * config.merge_kernel_size[0]) ** 2
    elif config.model_type.startswith("qwen"):
        largest = 16384  # the processors' max_pixels
    elif config.model_type == "glm_ocr":
        largest = 6144  # its processor's 9,633,792 pixels, of which an image takes two frames' worth
    elif vision.model_type == "pixtral":
        largest = (vision.image_size // (vision.patch_size * merged)) ** 2
    gated = vision.model_type in ("qwen2_5_vl", "qwen2_5_vl_vision", "pixtral", "gemma4_vision", "glm_ocr_vision")
    rotary = gated or config.model_type.startswith(("qwen", "llama4", "kimi", "minimax_m3"))
    return Encoder(vision.hidden_size, vision.intermediate_size, gated, rotary, patches, largest)


def _layer_types(text: Any) -> list[str]:
    """Return the kind of each layer that has a cache, or a state, of its own."""
    layers = text.num_hidden_layers
    window = getattr(text, "sliding_window", None)
    types = getattr(text, "layer_types", None)
    if not types:
        types = ["sliding_attention" if window else "full_attention"] * layers
    # The last layers of Gemma-3n use the caches of earlier ones.
    return list(types)[: layers - (getattr(text, "num_kv_shared_layers", 0) or 0)]


def _cache_layers(text: Any) -> tuple[CacheLayers, ...]:
    if text.model_type == "deepseek_v4":  # its keys are its values
        return tuple(CacheLayers(layers, 1, 2 * text.head_dim, window) for layers, window in looked_at(text))
    windows = {
        "sliding_attention": getattr(text, "sliding_window", None),
        "chunked_attention": getattr(text, "attention_chunk_size", None),
    }
    indexer = _indexer_bytes(text)
    found: Counter[tuple[int, int, int | None, int]] = Counter()
    by_layer = getattr(text, "per_layer_config", None)  # where layers differ in more than their kind: Gemma 4
    for number, kind in enumerate(_layer_types(text)):
        layer = by_layer[number] if by_layer else text
        if getattr(text, "kv_lora_rank", None):
            found[1, text.kv_lora_rank + text.qk_rope_head_dim, None, indexer] += 1
        elif kind in ("full_attention", "attention", _MINIMAX_SPARSE, *windows):
            heads = getattr(layer, "num_key_value_heads", None) or text.num_attention_heads
            width = getattr(layer, "head_dim", None) or text.hidden_size // text.num_attention_heads
            window = windows.get(kind)
            window = None if window and window >= text.max_position_embeddings else window
            found[heads, 2 * width, window, indexer] += 1
    compressed = bool(getattr(text, "kv_lora_rank", None))
    return tuple(CacheLayers(number, *key, compressed=compressed) for key, number in found.items())


def _indexer_bytes(text: Any) -> int:
    """Return the bytes that the indexer of sparse attention keeps for a token, as a mean over all layers.

    DeepSeek's keeps a key of 8 bits a number, and a scale of 32 bits for 128 of them (vLLM's
    ``DeepseekV32IndexerCache``); in GLM-5.2 most layers take what the indexer of an earlier one has found. MiniMax-M3's
    keeps a key of 16 bits a number (``MiniMaxM3IndexerCache``).
    """
    width = int(getattr(text, "index_head_dim", None) or 0)
    if not width:
        return 0
    minimax = [kind == _MINIMAX_SPARSE for kind in getattr(text, "layer_types", None) or ()]
    if any(minimax):
        return -(-2 * width * minimax.count(True) // len(minimax))
    kinds: list[str] = getattr(text, "indexer_types", None) or ["full"]
    return -(-(width + width // 128 * 4) * kinds.count("full") // len(kinds))


def _state_bytes(text: Any) -> int:
    """Return the bytes that layers without a KV cache keep for a sequence: a matrix for each of their heads.

    It has the 16 bits of the model's own type, unless ``mamba_ssm_dtype`` says 32, and Nemotron-H's has 32. LFM2's
    short convolutions keep the last inputs, in 16 bits.
    """
    kinds = _layer_types(text)
    if "conv" in kinds:
        return int(kinds.count("conv") * text.hidden_size * (text.conv_L_cache - 1) * 2)
    layers = sum(kind in ("linear_attention", "mamba") for kind in kinds)
    size = 4 if getattr(text, "mamba_ssm_dtype", None) == "float32" else 2
    if getattr(text, "mamba_num_heads", None):
        return int(layers * text.mamba_num_heads * text.mamba_head_dim * text.ssm_state_size * 4)
    if getattr(text, "mamba_n_heads", None):
        return int(layers * text.mamba_n_heads * text.mamba_d_head * text.mamba_d_state * size)
    keys, values = getattr(text, "linear_key_head_dim", 0), getattr(text, "linear_value_head_dim", 0)
    return int(layers * getattr(text, "linear_num_value_heads", 0) * keys * values * size)


def _state_page(text: Any) -> int:
    """Return the bytes of such a layer as vLLM counts them for its blocks (``MambaStateShapeCalculator``, one GPU)."""
    kinds = _layer_types(text)
    layers = sum(kind in ("conv", "linear_attention", "mamba") for kind in kinds)
    if not layers:
        return 0
    if "conv" in kinds:
        return _state_bytes(text) // layers
    if getattr(text, "mamba_num_heads", None):
        columns = text.mamba_num_heads * text.mamba_head_dim + 2 * text.n_groups * text.ssm_state_size
        kernel = text.conv_kernel
    elif getattr(text, "mamba_n_heads", None):
        inner = text.mamba_n_heads * text.mamba_d_head
        columns = inner + 2 * (getattr(text, "mamba_n_groups", 1) or 1) * text.mamba_d_state
        kernel = getattr(text, "mamba_d_conv", 4)
    else:
        keys = getattr(text, "linear_key_head_dim", 0) * getattr(text, "linear_num_key_heads", 0)
        values = getattr(text, "linear_value_head_dim", 0) * getattr(text, "linear_num_value_heads", 0)
        columns = 2 * keys + values
        kernel = getattr(text, "linear_conv_kernel_dim", 4)
    return _state_bytes(text) // layers + int(columns * (kernel - 1) * 2)


def _largest(size: Any) -> int:
    return max(size) if isinstance(size, (list, tuple)) else int(size or 0)


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Let transformers say nothing but errors inside: its remarks on a model's config are for those who train it."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
