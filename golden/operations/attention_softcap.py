"""Attention whose scores are bent by tanh to stay within a limit, as Gemma 2's."""

from functools import partial

import numpy as np
from msgspec.structs import replace

from refsd.golden.case import Case
from refsd.golden.mutations import answer, first_of_batch, other_input, other_params, without
from refsd.golden.operation import REQUIRED, Mutant, Operation, values
from refsd.golden.operations.attention_bounds import attention_bound
from refsd.golden.operations.attention_bugs import (
    exchanged,
    first_key_head,
    heads_interleaved,
    keys_of_whole_blocks,
    shares,
    softmax_by,
    transposed,
)
from refsd.golden.operations.softmax import NO_MAXIMUM
from refsd.golden.recipe import Recipe
from refsd.kernels.attention_softcap import attention_softcap
from refsd.kernels.softmax import softmax_sinks


def _run(a, inputs, params):
    q, k, v = (values(a, inputs[name]) for name in ("q", "k", "v"))
    mask = values(a, inputs["mask"]).astype(a.numerics.compute_dtype) if "mask" in inputs else None
    scale = q.shape[-1] ** -0.5 if params["scale"] is None else params["scale"]
    return a.apply(attention_softcap, q, k, v, scale=scale, cap=params["cap"], mask=mask)


def _softmax(scores):
    rows = scores.reshape(-1, scores.shape[-1])
    return softmax_sinks(rows, np.full(1, -np.inf, np.float32)).reshape(scores.shape)


def _bent_by(bend, weights=_softmax):
    """Replace cap tanh(s / cap) + mask by a function of s, cap and mask, and the softmax by another."""

    def own(s, mask, cap):
        return weights(bend(s, cap, np.float32(0) if mask is None else mask))

    return lambda op, inputs, params: softmax_by(partial(own, cap=np.float32(params["cap"])))(op, inputs, params)


def _tanh_overflowing(s, cap, mask):
    e = np.exp(2 * s / cap)
    return cap * (e - 1) / (e + 1) + mask


def _cap_before_scale(op, inputs, params):
    scale = inputs["q"].shape[-1] ** -0.5 if params["scale"] is None else params["scale"]
    return _bent_by(lambda s, cap, mask: scale * cap * np.tanh(s / (scale * cap)) + mask)(op, inputs, params)


# Hides three of eight keys; no query sees none.
_HIDDEN = Recipe((), "f16", "masked")


def _case(
    label: str, B: int, L: int, J: int, H: int, D: int, cap: float, G=0, mask=False, exponent=-14, **params
) -> Case:
    """Make a case of G heads of keys (0: H), with scores of several times the cap."""
    inputs = {
        "q": Recipe((B, L, H, D), exponent=exponent),
        "k": Recipe((B, J, G or H, D), exponent=exponent),
        "v": Recipe((B, J, G or H, D)),
    }
    if mask:
        inputs["mask"] = replace(_HIDDEN, shape=(B, 1, L, J))
    more = f"-g{G}" if G else ""
    name = f"attention_softcap/f32/{label}-b{B}-l{L}-j{J}-h{H}-d{D}{more}"
    return Case(name, "attention_softcap", inputs, {"cap": cap, **params})


ATTENTION_SOFTCAP = Operation(
    "attention_softcap",
    "softmax(cap tanh(scale q.k / cap) + mask) v; scale None is 1/sqrt(D). H/G neighbouring heads share keys and "
    "values. The mask is added to the capped scores.",
    family="attention",
    inputs={
        "q": "[B, L, H, D]",
        "k": "[B, J, G, D]",
        "v": "[B, J, G, E]",
        "mask?": "broadcastable to [B, H, L, J]",
    },
    output="[B, L, H, E]",
    params={"scale": None, "cap": REQUIRED},
    run=_run,
    fits=lambda shapes, params: shapes["q"][2] % shapes["k"][2] == 0 and params["cap"] > 0,
    bound=lambda run: attention_bound(run, run.params["cap"]),
    mutants=(
        Mutant("scores are not capped", _bent_by(lambda s, cap, mask: s + mask)),
        Mutant("scores are clipped, not bent", _bent_by(lambda s, cap, mask: np.clip(s, -cap, cap) + mask)),
        Mutant("scores are not divided by the cap", _bent_by(lambda s, cap, mask: cap * np.tanh(s) + mask)),
        Mutant("tanh is not multiplied by the cap", _bent_by(lambda s, cap, mask: np.tanh(s / cap) + mask)),
        Mutant("the mask is capped too", _bent_by(lambda s, cap, mask: cap * np.tanh((s + mask) / cap))),
        Mutant("scores are capped before they are scaled", _cap_before_scale),
        Mutant("NaN where exp(2 s / cap) overflows: the quotient of two infinities", _bent_by(_tanh_overflowing)),
        Mutant(
            NO_MAXIMUM, _bent_by(lambda s, cap, mask: cap * np.tanh(s / cap) + mask, lambda s: shares(np.exp(s)))
        ),
        Mutant("the cap is twice as large", other_params(cap=lambda cap: 2 * cap)),
        Mutant("scale missing", lambda op, i, p: answer(op, i, {**p, "scale": 1.0})),
        Mutant("given scale ignored", lambda op, i, p: answer(op, i, {**p, "scale": None}) if p["scale"] else None),
        Mutant("mask ignored", without("mask")),
        Mutant("mask transposed", other_input("mask", transposed)),
        Mutant("heads interleaved, not grouped", heads_interleaved),
        Mutant("only the first head of the keys", first_key_head),
        Mutant("keys and values exchanged", exchanged("k", "v")),
        *keys_of_whole_blocks(),
        Mutant("batch of v reads the first item", other_input("v", first_of_batch)),
    ),
    cases=(
        _case("self", 2, 20, 20, 2, 40, 3.0),
        _case("masked", 2, 33, 33, 3, 32, 2.0, mask=True),
        _case("grouped", 2, 20, 33, 6, 32, 5.0, G=2, scale=0.2),
        # Gemma 2's: scores far below the cap.
        _case("gemma2", 1, 20, 33, 2, 256, 50.0, G=1, mask=True, scale=0.0625),
        # Scores beyond 45 times the cap, and capped ones beyond 88: exponentials that float32 cannot hold.
        _case("far", 2, 20, 33, 2, 40, 0.05),
        _case("steep", 2, 33, 77, 2, 64, 200.0, exponent=-13, scale=0.25),
    ),
)

OPERATIONS = (ATTENTION_SOFTCAP,)
