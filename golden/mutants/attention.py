"""Known bugs of softmax and attention."""

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


def causal_with(k: int) -> Wrong:
    """The diagonal from which on keys are hidden, where it should be 1."""

    def wrong(op, inputs, params):
        if not params["causal"]:
            return None
        L = inputs["q"].shape[1]
        mask = np.triu(np.full((L, L), np.float16(-np.inf)), k)
        return answer(op, {**inputs, "mask": stored(mask)}, {**params, "causal": False})

    return wrong


def heads_as_tokens(x: np.ndarray) -> np.ndarray | None:
    """[B, H, L, D] taken for [B, L, H, D]."""
    B, L, H, D = x.shape
    return np.ascontiguousarray(x.reshape(B, H, L, D).transpose(0, 2, 1, 3)) if H > 1 else None


def exchanged(a: str, b: str) -> Wrong:
    return lambda op, inputs, params: answer(op, {**inputs, a: inputs[b], b: inputs[a]}, params)


MUTANTS: dict[str, tuple[Mutant, ...]] = {
    "softmax": (
        Mutant("over columns", softmax_over_columns),
        Mutant("mask ignored", without("mask")),
        Mutant("scale missing", lambda op, i, p: answer(op, i, {**p, "scale": 1.0}) if p["scale"] != 1 else None),
        Mutant("mask scaled too", mask_before_scale),
        Mutant("scores silently float16", other_input("x", to_float16)),
    ),
    "attention": (
        Mutant("scale missing", scale_by(0.0)),
        Mutant("scale 1/D", scale_by(-1.0)),
        Mutant("given scale ignored", lambda op, i, p: scale_by(-0.5)(op, i, p) if p["scale"] else None),
        Mutant("mask ignored", without("mask")),
        Mutant("mask transposed", other_input("mask", lambda m: m.swapaxes(-1, -2) if m.shape[-1] > 1 else None)),
        Mutant(
            "future not hidden", lambda op, i, p: answer(op, i, {**p, "causal": False}) if p["causal"] else None
        ),
        Mutant("one future key seen", causal_with(2)),
        Mutant("keys and values exchanged", exchanged("k", "v")),
        Mutant("heads and tokens of k mixed", other_input("k", heads_as_tokens)),
        Mutant("batch of v reads the first item", other_input("v", first_of_batch)),
        Mutant("q silently float16", other_input("q", to_float16)),
    ),
}
