"""Known bugs of normalisations."""

import numpy as np

from refsd.golden.mutants.mutant import (
    BATCH,
    EPS,
    IMAGE,
    NO_WEIGHT,
    ZERO_BIAS,
    Mutant,
    Wrong,
    answer,
    first_of_batch,
    other_input,
    other_params,
)
from refsd.golden.tensor import stored


def normalised(x, axis, eps, ddof=0, one_pass=False):
    x = x.astype(np.float32)
    mean = x.mean(axis=axis, keepdims=True)
    if one_pass:
        variance = np.maximum((x * x).mean(axis=axis, keepdims=True) - mean * mean, 0)
    else:
        variance = x.var(axis=axis, keepdims=True, ddof=ddof)
    return (x - mean) / np.sqrt(variance + np.float32(eps))


def wrong_norm(**how) -> Wrong:
    def wrong(op, inputs, params):
        x = inputs["x"].values()
        if op == "group_norm":
            y = normalised(x.reshape(x.shape[0], params["num_groups"], -1), 2, params["eps"], **how).reshape(
                x.shape
            )
            return y * inputs["weight"].values()[:, None, None] + inputs["bias"].values()[:, None, None]
        y = normalised(x, -1, params["eps"], **how)
        if "weight" in inputs:
            y = y * inputs["weight"].values() + inputs["bias"].values()
        return y

    return wrong


def centred_rms(op, inputs, params):
    y = normalised(inputs["x"].values(), -1, params["eps"])
    return y * inputs["weight"].values() if "weight" in inputs else y


def lengths_by(divisor) -> Wrong:
    """Rows divided by a function of their squared length, their number of elements and eps."""

    def wrong(op, inputs, params):
        x = inputs["x"].values().astype(np.float32)
        return x / divisor((x * x).sum(axis=-1, keepdims=True), x.shape[-1], np.float32(params["eps"]))

    return wrong


def by_variance(op, inputs, params):
    """The root forgotten."""
    x, mean, var = (inputs[name].values() for name in ("x", "mean", "var"))
    return (x - mean[:, None, None]) / (var + np.float32(params["eps"]))[:, None, None]


def exchanged(a: str, b: str) -> Wrong:
    return lambda op, inputs, params: answer(op, {**inputs, a: inputs[b], b: inputs[a]}, params)


def silu_first(op, inputs, params):
    x = answer("silu", {"x": inputs["x"]}, {})
    return answer("group_norm", {**inputs, "x": stored(x)}, params)


def activated_by(activation: str) -> Wrong:
    def wrong(op, inputs, params):
        return answer(activation, {"x": stored(answer("group_norm", inputs, params))}, {})

    return wrong


_CONDITIONED = (
    Mutant("scale and shift exchanged", exchanged("scale", "shift")),
    Mutant("scale alone, without its 1", other_input("scale", lambda s: s - 1)),
    Mutant("shift missing", other_input("shift", np.zeros_like)),
    Mutant("every item conditioned as the first", other_input("scale", first_of_batch)),
)
_ONE_PASS = Mutant("variance as E[x^2] - E[x]^2 in float32", wrong_norm(one_pass=True))


_UNBIASED = Mutant("variance divided by n - 1", wrong_norm(ddof=1))


MUTANTS: dict[str, tuple[Mutant, ...]] = {
    "group_norm": (
        *EPS,
        _ONE_PASS,
        _UNBIASED,
        ZERO_BIAS,
        NO_WEIGHT,
        Mutant("a group a channel", lambda op, i, p: answer(op, i, {**p, "num_groups": i["x"].shape[1]})),
        Mutant("one group", other_params(num_groups=lambda g: 1)),
        BATCH,
    ),
    "layer_norm": (*EPS, _ONE_PASS, _UNBIASED, ZERO_BIAS, NO_WEIGHT, BATCH),
    "l2_norm": (
        *EPS,
        Mutant("eps added to the length", lengths_by(lambda s, n, eps: np.sqrt(s) + eps)),
        Mutant("eps under the root", lengths_by(lambda s, n, eps: np.sqrt(s + eps * eps))),
        Mutant("divided by the root of the mean square", lengths_by(lambda s, n, eps: np.sqrt(s / n))),
        Mutant("divided by the square", lengths_by(lambda s, n, eps: np.maximum(s, eps))),
        BATCH,
    ),
    "batch_norm": (
        *EPS,
        Mutant("divided by the variance", by_variance),
        Mutant("mean missing", other_input("mean", np.zeros_like)),
        Mutant("variance of the channel before", other_input("var", lambda v: np.roll(v, 1))),
        IMAGE,
        BATCH,
    ),
    "group_norm_silu": (
        *EPS,
        ZERO_BIAS,
        NO_WEIGHT,
        Mutant("SiLU before the norm", silu_first),
        Mutant("no SiLU", lambda op, i, p: answer("group_norm", i, p)),
        Mutant("quick GELU for SiLU", activated_by("quick_gelu")),
        Mutant("one group", other_params(num_groups=lambda g: 1)),
    ),
    "modulate": (*_CONDITIONED, BATCH),
    "adaptive_layer_norm": (*EPS, *_CONDITIONED, BATCH),
    "gated_add": (
        Mutant("gate missing", other_input("gate", np.ones_like)),
        Mutant("one more than the gate", other_input("gate", lambda g: g + 1)),
        Mutant("every item gated as the first", other_input("gate", first_of_batch)),
        Mutant("x and h exchanged", exchanged("x", "h")),
        Mutant("channels of the gate one off", other_input("gate", lambda g: np.roll(g, 1, axis=1))),
    ),
    "rms_norm": (*EPS, NO_WEIGHT, Mutant("mean subtracted", centred_rms), BATCH),
}
