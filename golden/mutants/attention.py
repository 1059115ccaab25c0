"""Known bugs of softmax and attention."""

from collections.abc import Callable

import numpy as np

from refsd.golden.mutants.mutant import (
    Mutant,
    Wrong,
    answer,
    first_of_batch,
    other_input,
    to_float16,
    without,
)
from refsd.golden.tensor import stored


def mask_before_scale(op, inputs, params):
    if "mask" not in inputs or params["scale"] == 1:
        return None
    mask = inputs["mask"].values().astype(np.float32) * params["scale"]
    return answer(op, {**inputs, "mask": stored(mask)}, params)


def softmax_over_columns(op, inputs, params):
    x = inputs["x"].values() * np.float32(params["scale"])
    x = x + (inputs["mask"].values().astype(np.float32) if "mask" in inputs else 0)
    e = np.exp(x - x.max(axis=-2, keepdims=True))
    return e / e.sum(axis=-2, keepdims=True)


def scale_by(power: float) -> Wrong:
    def wrong(op, inputs, params):
        return answer(op, inputs, {**params, "scale": inputs["q"].shape[-1] ** power})

    return wrong


def causal_with(change: Callable[[int, int], int]) -> Wrong:
    """Another diagonal: a function of the right one and of J - L."""

    def wrong(op, inputs, params):
        if not params["causal"]:
            return None
        later = inputs["k"].shape[1] - inputs["q"].shape[1]
        return answer(op, inputs, {**params, "diagonal": change(params["diagonal"], later)})

    return wrong


def heads_interleaved(op, inputs, params):
    """Head h reads keys and values h mod G, where it should read h // (H/G)."""
    H, G = inputs["q"].shape[2], inputs["k"].shape[2]
    if G in (1, H):
        return None
    each = {name: stored(inputs[name].values()[:, :, np.arange(H) % G]) for name in ("k", "v")}
    return answer(op, {**inputs, **each}, params)


def first_key_head(op, inputs, params):
    """Every head reads the first head's keys and values."""
    if inputs["k"].shape[2] == 1:
        return None
    first = {name: stored(inputs[name].values()[:, :, :1].copy()) for name in ("k", "v")}
    return answer(op, {**inputs, **first}, params)


def sink_with_value(op, inputs, params):
    """The sink's share of the softmax goes to the last value, where it should go nowhere."""
    if "sinks" not in inputs:
        return None
    v = inputs["v"].values()
    seen = answer(op, {**inputs, "v": stored(np.ones_like(v))}, params)
    last = np.repeat(v[:, -1:], inputs["q"].shape[2] // v.shape[2], axis=2)
    return answer(op, inputs, params) + (1 - seen) * last


def sinks_scaled(op, inputs, params):
    if "sinks" not in inputs:
        return None
    scale = params["scale"] or (inputs["q"].shape[-1] ** -0.5 if "q" in inputs else 1.0)
    return answer(op, {**inputs, "sinks": stored(inputs["sinks"].values() * np.float32(scale))}, params)


def nan_where_nothing_is_seen(op, inputs, params):
    """exp(-inf + inf) and 0 / 0."""
    y = answer(op, inputs, params)
    unseen = (y == 0).all(axis=-1, keepdims=True)
    return np.where(unseen, np.float32(np.nan), y) if unseen.any() else None


def heads_as_tokens(x: np.ndarray) -> np.ndarray | None:
    """[B, H, L, D] taken for [B, L, H, D]."""
    B, L, H, D = x.shape
    return np.ascontiguousarray(x.reshape(B, H, L, D).transpose(0, 2, 1, 3)) if H > 1 else None


def transposed(mask: np.ndarray) -> np.ndarray | None:
    return mask.swapaxes(-1, -2) if mask.ndim > 1 and mask.shape[-1] == mask.shape[-2] > 1 else None


def exchanged(a: str, b: str) -> Wrong:
    def wrong(op, inputs, params):
        if inputs[a].shape != inputs[b].shape:
            return None
        return answer(op, {**inputs, a: inputs[b], b: inputs[a]}, params)

    return wrong


MUTANTS: dict[str, tuple[Mutant, ...]] = {
    "softmax": (
        Mutant("over columns", softmax_over_columns),
        Mutant("mask ignored", without("mask")),
        Mutant("scale missing", lambda op, i, p: answer(op, i, {**p, "scale": 1.0}) if p["scale"] != 1 else None),
        Mutant("mask scaled too", mask_before_scale),
        Mutant("scores silently float16", other_input("x", to_float16)),
        Mutant("-inf as a large negative number", other_input("mask", lambda m: np.maximum(m, -20))),
        Mutant("sinks ignored", without("sinks")),
        Mutant("sinks of the next head", other_input("sinks", lambda s: np.roll(s, 1))),
    ),
    "attention": (
        Mutant("scale missing", scale_by(0.0)),
        Mutant("scale 1/D", scale_by(-1.0)),
        Mutant("given scale ignored", lambda op, i, p: scale_by(-0.5)(op, i, p) if p["scale"] else None),
        Mutant("mask ignored", without("mask")),
        Mutant("mask transposed", other_input("mask", transposed)),
        Mutant("-inf as a large negative number", other_input("mask", lambda m: np.maximum(m, -1e4))),
        Mutant("NaN where nothing is seen", nan_where_nothing_is_seen),
        Mutant(
            "future not hidden", lambda op, i, p: answer(op, i, {**p, "causal": False}) if p["causal"] else None
        ),
        Mutant("one future key seen", causal_with(lambda diagonal, later: diagonal + 1)),
        Mutant("causal from the other corner", causal_with(lambda diagonal, later: later - diagonal)),
        Mutant("heads interleaved, not grouped", heads_interleaved),
        Mutant("only the first head of the keys", first_key_head),
        Mutant("sinks ignored", without("sinks")),
        Mutant("sinks scaled too", sinks_scaled),
        Mutant("the sink has a value", sink_with_value),
        Mutant("keys and values exchanged", exchanged("k", "v")),
        Mutant("heads and tokens of k mixed", other_input("k", heads_as_tokens)),
        Mutant("batch of v reads the first item", other_input("v", first_of_batch)),
        Mutant("q silently float16", other_input("q", to_float16)),
    ),
}
