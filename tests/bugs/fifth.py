"""A fifth fresh set: from public trackers, drawn after causes were fitted without lists."""

import itertools

import numpy as np
from held_out import HeldOut
from injected_files import alpha_of, modules_of, product_of
from injected_steps import sampled
from injection import Injection, other_result, wrong_answer, wrong_method, wrong_parts

from refsd.models.vae.latents import LATENT_SCALES

# --- operations --------------------------------------------------------------------------------------------------


def _head_zero(a, right, q, k, v, *rest, **named):
    """A head's offset is a quotient of strides that is floored to 0: every head reads and writes head 0."""
    first = [np.repeat(np.asarray(t)[:, :, :1], t.shape[2], axis=2) for t in (q, k, v)]
    return right(*first, *rest, **named)


def _scale_of_a_half(a, right, q, k, v, scale=None, *rest, **named):
    return right(q, k, v, 0.5, *rest, **named)


def _whole_sixteenths(a, right, q, k, *rest, **named):
    """Products are of whole tiles of 16 channels: those of q and k behind them are not read."""
    n = q.shape[-1] // 16 * 16
    if not n:
        return right(q, k, *rest, **named)
    q, k = (np.where(np.arange(t.shape[-1]) < n, t, 0).astype(t.dtype) for t in map(np.asarray, (q, k)))
    return right(q, k, *rest, **named)


def _statistics_by_column(a, right, x, weight, bias, eps=1e-5):
    """The mean and the variance are those of the row whose number is the column's."""
    x = np.asarray(x, np.float64)
    rows = x.reshape(-1, x.shape[-1])
    at = np.arange(rows.shape[1]) % len(rows)
    mean, variance = rows.mean(1)[at], rows.var(1)[at]
    y = ((rows - mean) / np.sqrt(variance + eps)).reshape(x.shape)
    return y * (1 if weight is None else weight) + (0 if bias is None else bias)


def _no_eps(a, right, x, weight, bias, eps=1e-5):
    with np.errstate(all="ignore"):
        return right(x, weight, bias, 0.0)


def _squared(a, right, x, weight, bias, eps=1e-5):
    """std = (variance + eps)^2, for the root."""
    x = np.asarray(x, np.float64)
    y = (x - x.mean(-1, keepdims=True)) / (x.var(-1, keepdims=True) + eps) ** 2
    return y * (1 if weight is None else weight) + (0 if bias is None else bias)


def _default_eps(a, right, x, weight, bias, eps=1e-5):
    """The fused operation has its own default."""
    return right(x, weight, bias, 1e-3)


def _four_channels_in_odd_rows(case, inputs, y):
    """In every odd row the first four channels stand again and again."""
    wrong = np.array(y)
    wrong[:, :, 1::2] = y[:, np.arange(y.shape[1]) % 4, 1::2]
    return wrong


def _not_dilated(a, right, x, weight, bias, stride=1, padding=(0, 0, 0, 0), dilation=1, groups=1):
    """im2col does not know of dilation; the output keeps its size, and the filter begins where it did."""
    y = right(x, weight, bias, stride, padding, dilation, groups)
    if dilation == 1:
        return y
    down, across = ((n - 1) * (d - 1) for n, d in zip(weight.shape[2:], np.broadcast_to(dilation, 2), strict=True))
    top, bottom, left, right_ = padding
    return right(x, weight, bias, stride, (top, bottom - down, left, right_ - across), 1, groups)


def _filter_reshaped(a, right, x, weight, *rest, **named):
    """A filter [K, C, R, S] comes as [S, R, C, K] and is reshaped, where it should be transposed."""
    weight = np.asarray(weight)
    return right(x, np.ascontiguousarray(weight.T).reshape(weight.shape), *rest, **named)


def _blocks(type: str, size: int, change):
    """change: blocks [n, bytes] -> values [n, K]"""

    def wrong(case, inputs, y):
        tensor = inputs["x"]
        if tensor.type != type:
            return y
        return change(tensor.data.reshape(-1, size)).reshape(y.shape).astype(y.dtype)

    return wrong


def _half(blocks, at):
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float64)


def _two_s_complement(blocks):
    """A code of 8 and above is negative; 8 is not taken off."""
    q = np.concatenate([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], axis=1).astype(np.float64)
    return _half(blocks, 0) * np.where(q > 7, q - 16, q)


def _neighbours_in_a_byte(blocks):
    """The two codes of a byte are taken for neighbours, not for one of each half."""
    q = np.stack([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], axis=2).reshape(len(blocks), -1)
    return _half(blocks, 0) * (q.astype(np.float64) - 8)


def _first_group_for_all(blocks):
    """Q8_0 in tiles of 8 blocks, whose index lacks the group: each reads the codes of the first one's tile."""
    q = np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.float64)
    return _half(blocks, 0) * q[np.arange(len(q)) // 8 * 8]


def _nearest_of_centres(case, inputs, y):
    """floor((p + 1/2) n / N), where floor(p n / N) is asked for."""
    x = inputs["x"].values()
    at = [
        np.minimum(((np.arange(n) + 0.5) * m / n).astype(int), m - 1)
        for n, m in zip(y.shape[2:], x.shape[2:], strict=True)
    ]
    return x[:, :, at[0]][:, :, :, at[1]].astype(y.dtype)


# --- samplers, latents, adapters ---------------------------------------------------------------------------------


def _heun(model, x, sigmas, draws, case):
    """The second slope is divided by this step's sigma, not by the next one's."""
    for sigma, to in itertools.pairwise(sigmas):
        kind = x.dtype.type
        d = (x - model(x, float(sigma))) / kind(sigma)
        if to == 0:
            x = x + d * kind(to - sigma)
            continue
        second = x + d * kind(to - sigma)
        d_2 = (second - model(second, float(to))) / kind(sigma)
        x = x + (d + d_2) / 2 * kind(to - sigma)
    return x


def _decoded_as_it_is(case, values, y):
    """What the denoiser gives goes to the decoder without a division by the scale."""
    scale = LATENT_SCALES.get(case.params["family"])
    if scale is None or case.params.get("kind", "vae") != "vae" or "channel_mean" in values:
        return None
    return {"shown_latent": values["latent"] + scale.shift}


def _latent_as_it_is(case, values, y):
    """The encoder's latent goes on as it is: neither shifted nor scaled."""
    scale = LATENT_SCALES.get(case.params["family"])
    if scale is None or case.params.get("kind", "vae") != "vae" or "channel_mean" in values:
        return None
    return {"latent": y["latent"] / scale.factor + scale.shift} if case.params.get("scaled", True) else None


def _strength_not_read(case, values, y):
    """A file is merged at alpha over rank, whatever strength is asked for."""
    modules = modules_of(values)
    if len(modules) > 1 or case.params.get("tag") or case.params.get("rows"):
        return None
    (parts,) = modules.values()
    if {"down", "up"} - parts.keys() or {"magnitude", "mid"} & parts.keys():
        return None
    change = alpha_of(parts) / len(parts["down"]) * product_of(parts)
    return {"merged": values["weight"] + change.reshape(values["weight"].shape)}


def _alpha_of_the_settings(case, values, y):
    """Every module's alpha is 8, a trainer's default, whatever the file has."""
    modules = modules_of(values)
    if any({"down", "up"} - parts.keys() or {"magnitude", "mid"} & parts.keys() for parts in modules.values()):
        return None
    if len(modules) > 1 or case.params.get("rows") or case.params.get("tag"):
        return None
    (parts,) = modules.values()
    change = 8 / len(parts["down"]) * case.params.get("strength", 1.0) * product_of(parts)
    return {"merged": values["weight"] + change.reshape(values["weight"].shape)}


_TABLE: dict[str, tuple[str, str, Injection]] = {
    "y-att-01": (
        "op",
        "BobMcDear/attorch#14, heads",
        wrong_method("attention", "attention", "head|axis H|axis G|first", attention=_head_zero),
    ),
    "y-att-02": (
        "op",
        "BobMcDear/attorch#14, scale",
        wrong_method("attention", "attention", r"scale is .*0\.5,|multiplied by", attention=_scale_of_a_half),
    ),
    "y-att-03": (
        "op",
        "flashinfer-ai/flashinfer#4299, cause assumed",
        wrong_method("attention", "attention", r"last \d+.*not read", attention=_whole_sixteenths),
    ),
    "y-norm-01": (
        "op",
        "PaddlePaddle/Paddle#35480, the same index in the forward pass",
        wrong_method("layer_norm", "layer_norm", "row|mean|variance|statistic", layer_norm=_statistics_by_column),
    ),
    "y-norm-02": (
        "op",
        "VeriSilicon/TIM-VX#589",
        wrong_method("layer_norm", "layer_norm", "eps (is )?(left out|missing|0)", layer_norm=_no_eps),
    ),
    "y-norm-03": (
        "op",
        "131250208/TPlinker-joint-extraction#37",
        wrong_method("layer_norm", "layer_norm", "squared?|fourth", layer_norm=_squared),
    ),
    "y-norm-04": (
        "op",
        "tensorflow/tensorflow#58863",
        wrong_method("layer_norm", "layer_norm", r"eps is 0\.001|eps", layer_norm=_default_eps),
    ),
    "y-conv-01": (
        "op",
        "iree-org/iree#16175",
        other_result("conv2d", "channel|odd|every 2nd|first (four|4)|copy", _four_channels_in_odd_rows),
    ),
    "y-conv-02": (
        "op",
        "AlexeyAB/darknet#4836",
        wrong_method("conv2d", "conv2d", "dilation|taps?", conv2d=_not_dilated),
    ),
    "y-conv-03": (
        "op",
        "1bit-MONSTER/1bit-MONSTER#572, convolution",
        wrong_method("conv2d", "conv2d", "weight.*(order|memory|axes|reverse|taps)", conv2d=_filter_reshaped),
    ),
    "y-q-01": (
        "op",
        "1bit-MONSTER/1bit-MONSTER#153",
        other_result("dequantize", "first|tile|codes|again|block", _blocks("q8_0", 34, _first_group_for_all)),
    ),
    "y-q-02": (
        "op",
        "1bit-MONSTER/1bit-MONSTER#572, complement",
        other_result(
            "dequantize", "sign|complement|codes.*(8 as -8|0 as 0)", _blocks("q4_0", 18, _two_s_complement)
        ),
    ),
    "y-q-03": (
        "op",
        "1bit-MONSTER/1bit-MONSTER#572, nibbles",
        other_result(
            "dequantize", "interleaved|neighbour|halves|nibble", _blocks("q4_0", 18, _neighbours_in_a_byte)
        ),
    ),
    "y-up-01": (
        "op",
        "Oneflow-Inc/oneflow#5347; flagos-ai/FlagGems#5228, the other way round",
        other_result("resize_nearest", "centre|half|exact|0\\.5|nearest", _nearest_of_centres),
    ),
    "y-smp-01": (
        "sampler",
        "huggingface/diffusers#1512",
        sampled(("heun/karras",), "x|latent", "sigma in place of sigma_next|d_2", _heun),
    ),
    "y-vae-01": (
        "pipeline",
        "huggingface/diffusers#5166",
        wrong_answer("latents/*", "shown_latent", "scale|0\\.18215|times|multiplied", _decoded_as_it_is),
    ),
    "y-vae-02": (
        "pipeline",
        "huggingface/diffusers#8708",
        wrong_parts(
            "latents/flux",
            "latent",
            "shift",
            scale=lambda family, kind: LATENT_SCALES[family]._replace(shift=0.0),
        ),
    ),
    "y-vae-03": (
        "pipeline",
        "city96/SD-Latent-Upscaler#4",
        wrong_answer("latents/sd*", "latent", "scale|times|multiplied|not scaled", _latent_as_it_is),
    ),
    "y-lora-01": (
        "loader",
        "cloneofsimo/lora#187",
        wrong_answer("adapter/lora*", "merged", "strength", _strength_not_read),
    ),
    "y-lora-02": (
        "loader",
        "huggingface/diffusers#6087",
        wrong_answer("adapter/lora*", "merged", "alpha", _alpha_of_the_settings),
    ),
}
FIFTH: dict[str, HeldOut] = {id: HeldOut(*row) for id, row in _TABLE.items()}
