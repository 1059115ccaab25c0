"""Operations as short formulas, whose text is changed in one place: a term dropped, a function left out, a sign.

A kernel is a loop for the compiler, which cannot be changed so. The formula is also a list of what an operation has
in hand on its way: any of these may stand where the result belongs, as in a tail that lacks the last step.
"""

import itertools
from collections.abc import Callable, Iterator

import ml_dtypes
import numpy as np

from refsd.causes.generic.formula_variants import Text
from refsd.causes.generic.running_code import swapped
from refsd.golden.operation import Inputs, Operation, Params

# Multiplications of one product, at the most: each of some fifty changes computes them again.
_MOST = 1 << 24


def silu(x):
    return x / (1 + np.exp(-x))


def quick_gelu(x):
    return x / (1 + np.exp(-1.702 * x))


def gelu_tanh(x):
    return x * (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * x**3))) / 2


def linear(x, weight, bias=0.0):
    return x @ weight.T + bias


def lora(x, down, up, alpha=None):
    scale = 1.0 if alpha is None else alpha / len(down)
    return scale * (x @ down.T @ up.T)


def modulate(x, shift, scale):
    return x * (1 + scale[:, None]) + shift[:, None]


def gated_add(x, h, gate):
    return x + gate[:, None] * h


def batch_norm(x, mean, var, eps):
    return (x - mean[:, None, None]) / np.sqrt(var[:, None, None] + eps)


def mean(y):
    return y.mean(-1, keepdims=True)


def normalised(x, eps):
    centred = x - mean(x)
    return centred / np.sqrt(mean(centred * centred) + eps)


def layer_norm(x, eps, weight=1.0, bias=0.0):
    scaled = normalised(x, eps)
    return scaled * weight + bias


def adaptive_layer_norm(x, shift, scale, eps):
    scaled = normalised(x, eps)
    return scaled * (1 + scale[:, None]) + shift[:, None]


def rms_norm(x, eps, weight=1.0):
    scaled = x / np.sqrt(mean(x * x) + eps)
    return scaled * weight


def l2_norm(x, eps):
    return x / np.maximum(np.sqrt((x * x).sum(-1, keepdims=True)), eps)


def group_norm(x, weight, bias, num_groups, eps):
    scaled = normalised(x.reshape(len(x), num_groups, -1), eps).reshape(x.shape)
    return scaled * weight.reshape(-1, *[1] * (x.ndim - 2)) + bias.reshape(-1, *[1] * (x.ndim - 2))


def softmax(x, scale, mask=0.0):
    scores = scale * x + mask
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def attention(q, k, v, scale, mask=0.0):
    scores = scale * np.einsum("blhd,bjhd->bhlj", q, k) + mask
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    weights = powers / powers.sum(-1, keepdims=True)
    return np.einsum("bhlj,bjhe->blhe", weights, v)


def rope(x, ids, axes_dim, theta, halves):
    parts = [ids[..., a, None] * theta ** (-np.arange(0, n, 2) / n) for a, n in enumerate(axes_dim)]
    angle = np.concatenate(parts, axis=-1)[:, :, None]
    n = angle.shape[-1]
    one, two = (x[..., :n], x[..., n : 2 * n]) if halves else (x[..., : 2 * n : 2], x[..., 1 : 2 * n : 2])
    first, second = one * np.cos(angle) - two * np.sin(angle), one * np.sin(angle) + two * np.cos(angle)
    turned = (
        np.concatenate([first, second], -1) if halves else np.stack([first, second], -1).reshape(*x.shape[:-1], -1)
    )
    return np.concatenate([turned, x[..., 2 * n :]], axis=-1)


def timestep_embedding(t, dim, max_period, freq_shift, scale, sin_first):
    half = dim // 2
    angle = scale * t[:, None] * max_period ** (-np.arange(half) / (half - freq_shift))
    waves = [np.sin(angle), np.cos(angle)] if sin_first else [np.cos(angle), np.sin(angle)]
    return np.concatenate([*waves, np.zeros((len(t), dim % 2))], axis=1)


# Operation -> the functions of its formula, the inner ones first.
_FORMULAS = {
    function.__name__: (*_inner, function)
    for _inner, of in (
        ((), (silu, quick_gelu, gelu_tanh, linear, lora, modulate, gated_add, batch_norm, l2_norm)),
        ((), (softmax, attention, rope, timestep_embedding)),
        ((mean,), (rms_norm,)),
        ((mean, normalised), (layer_norm, adaptive_layer_norm, group_norm)),
    )
    for function in of
}
# What may be read or kept in place of an intermediate result, by name.
_TAKEN: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "{} is rounded to float16": lambda y: y.astype(np.float16).astype(np.float64),
    "{} is rounded to bfloat16": lambda y: y.astype(ml_dtypes.bfloat16).astype(np.float64),
    "{} is that of the row before": lambda y: np.roll(y, 1, -2),
    "{} is that of the first row, for all": lambda y: np.broadcast_to(y[..., :1, :], y.shape),
    "{} is that of the first item, for all": lambda y: np.broadcast_to(y[:1], y.shape),
    "{} is taken over all heads, or all tokens": lambda y: 0 * y + y.mean(-2, keepdims=True),
    "{} is taken over all items": lambda y: np.broadcast_to(y.mean(0, keepdims=True), y.shape),
    "{} is taken over everything": lambda y: np.full(y.shape, y.mean()),
}


def changed_formulas(op: Operation, inputs: Inputs, params: Params) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (phrase, wrong answer) of each change of the operation's formula, and of each intermediate result.

    params: complete
    """
    functions = _FORMULAS.get(op.name, ())
    values = {name: tensor.values().astype(np.float64) for name, tensor in inputs.items()}
    work = values["x"].size * len(values["weight"]) if op.name == "linear" else 0
    if not functions or "sinks" in values or work > _MOST:
        return
    named = {**params, **values}
    if op.name == "attention":
        named |= whole_attention(values, params)
    whole = functions[-1]
    taken = whole.__code__.co_varnames[: whole.__code__.co_argcount]
    named = {name: value for name, value in named.items() if name in taken}
    texts = [Text(function) for function in functions]
    variants = ((text.function, *change) for text in reversed(texts) for change in text.intermediates())
    more = ((text.function, v.phrase, v.code) for text in texts for v in text.variants())
    through = (
        (text.function, phrase, code) for text in texts for phrase, code in text.through("taken_for", _TAKEN)
    )
    for function, phrase, code in itertools.chain(variants, through, more):
        with swapped(function, code), np.errstate(all="ignore"):
            try:
                y = np.asarray(whole(**named), np.float32)
            except Exception:  # a changed formula may fail in any way; then it explains nothing
                continue
        yield phrase, y


def taken_for(phrase: str, y: np.ndarray) -> np.ndarray:
    """Return what stands in place of an intermediate result, by `_TAKEN`. Called by changed formulas."""
    return _TAKEN[phrase](y)


def whole_attention(values: dict[str, np.ndarray], params: Params) -> dict:
    """Return keys and values of every head, the scale and the whole mask."""
    q, k = values["q"], values["k"]
    ratio, scale = q.shape[2] // k.shape[2], params["scale"]
    hidden = np.zeros((q.shape[1], k.shape[1]), bool)
    if params.get("causal"):
        hidden = np.arange(k.shape[1]) > np.arange(q.shape[1])[:, None] + params["diagonal"]
    mask = values.get("mask", np.zeros(1)) + np.where(hidden, -np.inf, 0.0)
    heads = {name: np.repeat(values[name], ratio, axis=2) for name in ("k", "v")}
    return {**heads, "q": q, "scale": q.shape[-1] ** -0.5 if scale is None else scale, "mask": mask}


def attention_weights(op: Operation, inputs: Inputs, params: Params) -> tuple[np.ndarray, np.ndarray]:
    """Return the softmax's weights [rows, J] and what it gives [..., n], of attention or of softmax alone."""
    values = {name: tensor.values().astype(np.float64) for name, tensor in inputs.items()}
    if op.name == "attention":
        values = whole_attention(values, params)
        scores = values["scale"] * np.einsum("blhd,bjhd->blhj", values["q"], values["k"])
        shape = (*scores[:, 0].shape[:2], *scores.shape[1::2])
        scores = scores + np.broadcast_to(values["mask"], shape).swapaxes(1, 2)
    else:
        scores = params["scale"] * values["x"] + values.get("mask", 0.0)
    top = scores.max(axis=-1, keepdims=True)
    powers = np.exp(scores - np.where(np.isneginf(top), 0.0, top))
    total = powers.sum(axis=-1, keepdims=True)
    weights = powers / np.where(total == 0, 1.0, total)
    y = np.einsum("blhj,bjhe->blhe", weights, values["v"]) if op.name == "attention" else weights
    return weights.reshape(-1, weights.shape[-1]), y
