"""A fifteenth fresh set, of operations: from public trackers, drawn before a look at the judge."""

import dataclasses

import numpy as np
from held_out import HeldOut
from injection import Bug, Injection, other_result, wrong_method

from refsd.kernels.activations import geglu

# --- activations, norms and rope ---------------------------------------------------------------------------------


def _gate_as_if_packed(case, inputs, y):
    """Gates are the second half of rows of 2 D; they are read one after the other from there on."""
    x = inputs["x"].values()
    D = x.shape[-1] // 2
    gates = x.reshape(-1)[D : D + x.size // 2].reshape(*x.shape[:-1], D)
    return geglu(np.concatenate([x[..., :D], gates], axis=-1).reshape(-1, 2 * D)).reshape(y.shape)


def _next_power_of_two(a, right, x, weight, bias, num_groups=32, eps=1e-5):
    """Sums of a group run to the next power of two of its channels; the count is its own."""
    _, C, H, W = x.shape
    n, x = C // num_groups, np.asarray(x, np.float64)
    y = np.empty_like(x)
    for g in range(num_groups):
        own, read = slice(g * n, (g + 1) * n), x[:, g * n : g * n + (1 << (n - 1).bit_length())]
        mean = read.sum(axis=(1, 2, 3), keepdims=True) / (n * H * W)
        variance = np.square(read - mean).sum(axis=(1, 2, 3), keepdims=True) / (n * H * W)
        y[:, own] = (x[:, own] - mean) / np.sqrt(variance + eps)
    return y * np.reshape(weight, (1, C, 1, 1)) + np.reshape(bias, (1, C, 1, 1))


def _over_the_whole_head(case, inputs, y):
    """The first `turned` / 2 pairs turn by frequencies of the whole width, with partners half the width away."""
    x, turned = inputs["x"].values().astype(np.float64), sum(case.params["axes_dim"])
    D, half = x.shape[-1], turned // 2
    angle = inputs["ids"].values()[..., :1] * case.params["theta"] ** (-2.0 * np.arange(half) / D)
    cos, sin = np.cos(angle)[:, :, None], np.sin(angle)[:, :, None]
    one, two = x[..., :half].copy(), x[..., D // 2 : D // 2 + half].copy()
    x[..., :half], x[..., D // 2 : D // 2 + half] = one * cos - two * sin, one * sin + two * cos
    return x


# --- attention ---------------------------------------------------------------------------------------------------


def _queries_in_other_blocks(a, right, q, *rest, **named):
    """A thread has 8 numbers of each 64 of q; the loop over k gives it pairs of each 16."""
    D = q.shape[-1]
    if D % 64:
        return right(q, *rest, **named)
    s, t = np.divmod(np.arange(D // 2), 8)
    pair = 64 * (s // 4) + 8 * t + 2 * (s % 4)
    return right(np.ascontiguousarray(q[..., np.stack([pair, pair + 1], axis=-1).ravel()]), *rest, **named)


# --- few bits ----------------------------------------------------------------------------------------------------


def _largest_of_the_first_tile(a, right, x, weight, scale, bias, how, static=None, zero=None):
    """The tensor's largest number is sought in its first 8192."""
    if static is not None or how.scale != "tensor" or how.block:
        return right(x, weight, scale, bias, how, static, zero)
    first = np.abs(np.asarray(x, np.float32)).reshape(-1)[:8192].max() / np.float32(how.reach)
    return right(x, weight, scale, bias, how, np.float32(first))


def _ties_away(a, right, x, weight, scale, bias, how, static=None, zero=None):
    return right(x, weight, scale, bias, dataclasses.replace(how, rounding="away"), static, zero)


def _nibbles_by_turns(case, inputs, y):
    """Both nibbles of a byte are neighbours, not sixteen apart."""
    return {"y": y["y"].reshape(len(y["y"]), -1, 2, 16).swapaxes(2, 3).reshape(y["y"].shape)}


_TABLE = {
    "fi-op-01": (
        "op",
        "huggingface/kernels-community#106",
        other_result(
            "geglu",
            "packed|contiguous|stride|(next|other|previous|neighbouring) (row|token)|row.*(read|length)|memory"
            "|one after the other|halves",
            _gate_as_if_packed,
        ),
    ),
    "fi-op-02": (
        "op",
        "pie-project/pie#602",
        Injection(
            ("rope/f32/partial-halves-*",),
            Bug(answer=lambda case, inputs, y: {"y": _over_the_whole_head(case, inputs, y["y"])}),
            "rope",
            "whole (head|width)|head.*width|full width|head_dim|all channels|not.*partial|width of the head"
            "|half (of )?the head",
        ),
    ),
    "fi-op-03": (
        "op",
        "AMD-AGI/Primus-Turbo#306",
        wrong_method(
            "linear_fp8",
            "linear_fp8",
            "scale.*(first|part|some|tile|8192|block|row)|largest.*(first|part|some|tile|8192)|amax"
            "|saturat|too small",
            linear_quantized=_largest_of_the_first_tile,
        ),
    ),
    "fi-op-04": (
        "op",
        "kekzl/imp#567",
        Injection(
            ("dequantize/mxfp4/*",),
            Bug(answer=_nibbles_by_turns),
            "dequantize",
            "nibble|neighbour|interleav|by turns|pairs|order|halves|sixteen|16",
        ),
    ),
    "fi-op-05": (
        "op",
        "TheTom/llama-cpp-turboquant#3",
        wrong_method(
            "attention",
            "attention",
            r"q(ueries)?\b.*(order|permut|channels|interleav|blocks|other|transpos|exchang)|channels.*(order|permut)"
            "|permut",
            "attention/f32/*-d64*",
            "attention/f32/*-d128",
            attention=_queries_in_other_blocks,
        ),
    ),
    "fi-op-06": (
        "op",
        "flagos-ai/FlagGems#4985",
        wrong_method(
            "group_norm",
            "group_norm",
            "power of (two|2)|read on into|next group|other group|channels of (the )?(next|another|other)|beyond"
            "|too many channels|neighbouring group",
            group_norm=_next_power_of_two,
        ),
    ),
    "fi-op-07": (
        "op",
        "Comfy-Org/comfy-kitchen#58",
        wrong_method(
            "linear_int8",
            "linear_int8",
            "away|ties|half up|even",
            linear_quantized=_ties_away,
        ),
    ),
    "fi-op-08": ("op", "ggml-org/llama.cpp#25928, roll of a source that is not packed", None),
    "fi-op-09": ("op", "huggingface/candle#3736, a weight that is a slice", None),
    "fi-op-10": ("op", "ml-explore/mlx#3480, quantised keys of grouped heads", None),
    "fi-op-11": ("op", "ml-explore/mlx#3248, more than 2^31 outputs", None),
    "fi-op-12": ("op", "mflux-community/mflux#489, more than 32768 rows", None),
    "fi-op-13": ("op", "microsoft/onnxruntime#28536, more than 65535 groups of work", None),
    "fi-op-14": ("op", "ikawrakow/ik_llama.cpp#2031, narrow values of more keys than a block has", None),
    "fi-op-15": ("op", "ikawrakow/ik_llama.cpp#1005, Q6_0", None),
    "fi-op-16": ("op", "pytorch/executorch#20655, zero points", None),
}
FIFTEENTH_OPERATIONS: dict[str, HeldOut] = {id: HeldOut(*row) for id, row in _TABLE.items()}
