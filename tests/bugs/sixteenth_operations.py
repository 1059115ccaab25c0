"""A sixteenth fresh set, of operations: from public trackers, drawn before a look at the judge."""

import numpy as np
from held_out import HeldOut
from injection import Bug, Injection, wrong_method, wrong_operation

from refsd.kernels.quant.activation_codes import GRIDS, divided, scale_of, to_grid
from refsd.numerics.quantization import scales

# --- norms and rope ----------------------------------------------------------------------------------------------


def _filled_to_a_power_of_two(a, right, x, weight=None, bias=None, eps=1e-5):
    """Rows lie in the next power of two; x - mean is not masked, so that the filling counts in the variance."""
    x = np.asarray(x, np.float32)
    D = x.shape[-1]
    mean = x.mean(axis=-1, keepdims=True)
    filling = (1 << (D - 1).bit_length()) - D
    variance = (np.square(x - mean).sum(axis=-1, keepdims=True) + filling * np.square(mean)) / np.float32(D)
    y = (x - mean) / np.sqrt(variance + np.float32(eps))
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _turned_by_the_next_row(case, inputs, y):
    """The whole head turns: cosines are the row of both, as wide as half the head wants; sines are what follows."""
    x, ids = inputs["x"].values().astype(np.float64), inputs["ids"].values()[..., 0].astype(int)
    turned, half = sum(case.params["axes_dim"]), x.shape[-1] // 2
    angle = np.arange(ids.max() + 3)[:, None] * case.params["theta"] ** (-np.arange(0, turned, 2) / turned)
    table = np.concatenate([np.cos(angle), np.sin(angle)], axis=1).ravel()
    at = ids[..., None] * turned + np.arange(half)
    cos, sin = table[at][:, :, None], table[at + half][:, :, None]
    one, two = x[..., :half], x[..., half:]
    return np.concatenate([one * cos - two * sin, two * cos + one * sin], axis=-1)


# --- attention ---------------------------------------------------------------------------------------------------


def _from_the_first_corner(a, right, q, k, v, scale=None, mask=None, diagonal=None, sinks=None):
    """Query l sees keys 0..l, however many keys there are."""
    return right(q, k, v, scale, mask, None if diagonal is None else 0, sinks)


def _to_the_causal_tile(a, right, q, k, v, scale=None, mask=None, *rest, **named):
    """A mask takes the causal one's place, but the loop over keys still ends with the queries' tile of 32."""
    L, J = q.shape[1], k.shape[1]
    if mask is None or L != J:
        return right(q, k, v, scale, mask, *rest, **named)
    beyond = np.arange(J) >= (np.arange(L) // 32 * 32 + 32)[:, None]
    return right(q, k, v, scale, mask + np.where(beyond, -np.inf, 0), *rest, **named)


def _nothing_by_nothing(case, inputs, y):
    """A query that sees no key: -inf - -inf in the softmax."""
    if "mask" not in inputs or "sinks" in inputs:
        return y
    unseen = (inputs["mask"].values().astype(np.float64) == -np.inf).all(axis=-1)  # [N, 1 or H, L]
    rows = np.broadcast_to(unseen, (len(y["y"]), y["y"].shape[2], y["y"].shape[1])).swapaxes(1, 2)
    return {"y": np.where(rows[..., None], np.nan, y["y"])}


# --- few bits ----------------------------------------------------------------------------------------------------


def _q5_k(blocks, by_turns):
    """Expand Q5_K whose fifth bits are read as a plain row of bits. by_turns: a byte's nibbles are neighbours"""
    blocks = blocks.reshape(-1, 176)
    d, dmin = (blocks[:, i : i + 2].copy().view(np.float16).astype(np.float64) for i in (0, 2))
    s, qs = blocks[:, 4:16].astype(int), blocks[:, 48:]
    scale = np.concatenate([s[:, :4] & 63, s[:, 8:] & 15 | s[:, :4] >> 6 << 4], axis=-1)
    least = np.concatenate([s[:, 4:8] & 63, s[:, 8:] >> 4 | s[:, 4:8] >> 6 << 4], axis=-1)
    fifth = np.unpackbits(blocks[:, 16:48], axis=1, bitorder="little").reshape(-1, 8, 32)
    if by_turns:
        low = np.stack([qs & 15, qs >> 4], axis=-1).reshape(-1, 8, 32)
    else:
        low = np.stack([qs.reshape(-1, 4, 32) & 15, qs.reshape(-1, 4, 32) >> 4], axis=2).reshape(-1, 8, 32)
    q = low + 16.0 * fifth
    return (d * scale)[..., None] * q - (dmin * least)[..., None]


def _nibbles_and_bits_in_a_row(case, inputs, y):
    return {"y": _q5_k(inputs["x"].data, True).reshape(y["y"].shape)}


def _bits_in_a_row(case, inputs, y):
    weight = _q5_k(inputs["weight"].data, False).reshape(inputs["weight"].shape)
    product = inputs["x"].values().astype(np.float64) @ weight.T
    return {"y": product + (inputs["bias"].values() if "bias" in inputs else 0.0)}


_CALLS = []


def _noted(a, right, *arguments):
    _CALLS.append((right, arguments))
    return right(*arguments)


def _first_scale_of_two_groups(case, inputs, y):
    """A block of activations is two groups of weights long, and multiplied by the first one's scale alone."""
    right, (x, weight, scale, bias, *rest) = _CALLS.pop()
    own = inputs["group_scale"].values().astype(weight.dtype)  # [O, G]
    first = own[:, np.arange(own.shape[1]) // 2 * 2]
    each = weight.shape[1] // own.shape[1]
    other = weight * np.repeat(np.divide(first, own, out=np.ones_like(own), where=own != 0), each, axis=1)
    return {"y": right(x, other, scale, bias, *rest)}


def _pairs_share_a_maximum(a, right, x, weight, scale, bias, how, static=None, zero=None):
    """The half of 32 threads is told by their number in the grid: behind the first 32 both halves are one."""
    x = np.asarray(x, np.float32)
    if how.block != 16 or x.shape[-1] % 16 or x.size % 32:
        return right(x, weight, scale, bias, how, static, zero)
    whole = scales(x, how) if static is None else np.asarray(static, np.float32).reshape((1,) * x.ndim)
    each = np.broadcast_to(whole, x.shape).reshape(-1, 16)[:, :1]
    blocks = x.reshape(-1, 16)
    most = scale_of(blocks, -1, how.largest or how.grid.largest)
    shared = np.repeat(most.reshape(-1, 2).max(axis=1), 2)[:, None]
    shared[:2] = most[:2]
    inner = to_grid(divided(shared, each), GRIDS[how.block_scale])
    values = (to_grid(divided(blocks, each * inner), how.grid, how.rounding) * inner).reshape(x.shape)
    y = values @ weight.T * (whole * scale)
    return y if bias is None else y + bias


_TABLE = {
    "xv-op-01": (
        "op",
        "unslothai/unsloth#1867",
        wrong_method(
            "layer_norm",
            "layer_norm",
            "power of (two|2)|padd|filling|filled|zeros|next (power|multiple)|too many|variance.*(mean|more)",
            layer_norm=_filled_to_a_power_of_two,
        ),
    ),
    "xv-op-02": (
        "op",
        "thu-ml/SageAttention#372",
        wrong_method(
            "attention",
            "attention",
            "corner|diagonal|first keys|top|upper left|aligned|too early|keys 0|offset",
            "attention/f32/last-corner-*",
            attention=_from_the_first_corner,
        ),
    ),
    "xv-op-03": (
        "op",
        "sgl-project/sglang#39593",
        wrong_method(
            "attention",
            "attention",
            "tile|last (key|column|\\d+ key)|keys? (beyond|behind|after|from|over)|causal|block of 32|whole blocks"
            "|first 32|multiple of 32",
            "attention/f32/masked-*",
            "attention/f32/hidden-*",
            attention=_to_the_causal_tile,
        ),
    ),
    "xv-op-04": (
        "op",
        "tracel-ai/burn#4697",
        Injection(
            ("attention/f32/*unseen*",),
            Bug(answer=_nothing_by_nothing),
            "attention",
            "NaN|no key|sees? no|hidden (rows?|throughout|everything)|every key|nothing",
        ),
    ),
    "xv-op-05": (
        "op",
        "vllm-project/vllm#43676",
        Injection(
            ("rope/f32/partial-halves-*",),
            Bug(answer=lambda case, inputs, y: {"y": _turned_by_the_next_row(case, inputs, y["y"])}),
            "rope",
            "whole (head|width)|all (channels|of the head)|full width|head_dim|not.*partial|half (of )?the head"
            "|far pairs|(next|other) (row|position)|table|memory|read on",
        ),
    ),
    "xv-op-06": (
        "op",
        "paiml/aprender#3110",
        Injection(
            ("dequantize/q5_k/*",),
            Bug(answer=_nibbles_and_bits_in_a_row),
            "dequantize",
            "nibble|neighbour|by turns|interleav|fifth|high bit|order|one (behind|after) the other",
        ),
    ),
    "xv-op-07": (
        "op",
        "paiml/aprender#3113",
        Injection(
            ("linear/q5_k/*",),
            Bug(answer=_bits_in_a_row),
            "linear",
            "fifth|high(er|est)? bit|\\bqh\\b|bits.*(row|order|sequen|one after)|upper bit",
        ),
    ),
    "xv-op-08": (
        "op",
        "vllm-project/tpu-inference#1934",
        Injection(
            ("linear_w4a8/*",),
            wrong_operation(linear_quantized=_noted)._replace(answer=_first_scale_of_two_groups),
            "linear_w4a8",
            "scale.*(two|2|pair|first|neighbour|other|next|previous|before|group)|group",
        ),
    ),
    "xv-op-09": (
        "op",
        "ml-explore/mlx#3934",
        wrong_method(
            "linear_nvfp4",
            "linear_nvfp4",
            "\\b32\\b|two (blocks|groups)|pairs?|share|neighbour|larger of|(other|next) (block|group)",
            linear_quantized=_pairs_share_a_maximum,
        ),
    ),
    "xv-op-10": ("op", "bledden/triton-msl#7, a causal mask where tiles divide the length", None),
    "xv-op-11": ("op", "vllm-project/vllm#30887, NaN in values behind a window", None),
    "xv-op-12": ("op", "flashinfer-ai/flashinfer#4267, rows whose scores are all below -5e4", None),
    "xv-op-13": ("op", "ohdearquant/lattice#374, scores below a mask of -10000", None),
    "xv-op-14": ("op", "intel/torch-xpu-ops#5022, NaN in a masked row", None),
    "xv-op-15": ("op", "apple/coremltools#2844, windows that hang over the edge", None),
    "xv-op-16": ("op", "pytorch/executorch#18616, a divisor of one's own", None),
    "xv-op-17": ("op", "ROCm/aiter#2900, MXFP4 of more than 32 rows and of 32 to 224 columns", None),
    "xv-op-18": ("op", "vllm-project/vllm#43557, activations in MXFP4", None),
    "xv-op-19": ("op", "pytorch/executorch#22437, a resize by a factor that no size tells", None),
    "xv-op-20": ("op", "QwenLM/Qwen-Image-2.1#6, padding of 65536 pixels along the frames", None),
}
SIXTEENTH_OPERATIONS: dict[str, HeldOut] = {id: HeldOut(*row) for id, row in _TABLE.items()}
