"""Softmax over the last axis, with a mask and sinks."""

import math

import numpy as np

from refsd.golden.bounds import FUNCTION, Run
from refsd.golden.case import Case
from refsd.golden.mutations import MANY_ROWS, Wrong, answer, other_input, rows_left_out, to_float16, without
from refsd.golden.operation import Mutant, Operation, optional, values
from refsd.golden.recipe import Recipe
from refsd.golden.rounding import Bound, Terms, alike, gamma, serial_error
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64
from refsd.numerics.tensor import stored

# Blocks of numbers that an engine adds up at once.
TAILS = (4, 8, 16, 32, 64)

NO_MAXIMUM = "the scores' maximum is not subtracted: exp overflows, or all are 0"


def _run(a, inputs, params):
    mask = values(a, inputs["mask"]) if "mask" in inputs else None
    return a.softmax(values(a, inputs["x"]), params["scale"], mask, optional(a, inputs, "sinks"))


def softmax_terms(u: float, scores, ds, ss) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return p, and the limit and spread of its relative error.

    p_j = exp(s_j - m) / sum exp: a change ds moves log p_j by ds_j - sum p ds; s - m rounds by u |s - m|;
    exp, the sum of L terms and the quotient add 8 u + gamma(L).
    """
    below = np.where(np.isneginf(scores), 0.0, scores.max(axis=-1, keepdims=True) - scores)
    total, error = sum_of_exponentials(u, scores)
    p = np.exp(-below) * ~np.isneginf(scores) / total
    n = scores.shape[-1]
    each = np.where(np.isneginf(scores), 0.0, ds) + u * below
    spread = np.where(np.isneginf(scores), 0.0, ss) + u * below / math.sqrt(3)
    limit = each + (p * each).sum(axis=-1, keepdims=True) + 2 * FUNCTION * u + gamma(n, u)
    summed = np.maximum(math.sqrt(n / 3) * u, np.abs(error) / total)
    spread = np.hypot(spread, np.sqrt((p**2 * spread**2).sum(axis=-1, keepdims=True))) + 2 * u + summed
    return p, np.expm1(np.minimum(limit, 700)), spread


def sum_of_exponentials(u: float, scores) -> tuple[np.ndarray, np.ndarray]:
    """Return sum exp(s - max s) [..., 1], 1 of a row masked throughout, which gives zeros; and its serial error."""
    hidden = np.isneginf(scores)
    e = np.exp(np.where(hidden, 0.0, scores - scores.max(axis=-1, keepdims=True))) * ~hidden
    total = e.sum(axis=-1, keepdims=True)
    return np.where(total > 0, total, 1.0), serial_error(e, u)


def with_sinks(run: Run, scores, *errors):
    """Append the sink and the error of storing it as column J to scores [B, H, L, J] and their errors."""
    if "sinks" not in run.inputs:
        return scores, *errors
    column = (*scores.shape[:-1], 1)
    sinks, moved = (np.broadcast_to(t[:, None, None], column) for t in (run.inputs["sinks"], run.moved("sinks")))
    return tuple(np.concatenate(pair, axis=-1) for pair in ((scores, sinks), *((e, moved) for e in errors)))


def _bound(run: Run) -> Bound:
    """softmax_terms of scale x + mask, with the sink as a last column.

    An engine that composes it from several operations stores the product, if there is a scale, and the sum, if
    there is a mask.
    """
    x, dx, scale = run.inputs["x"], run.moved("x"), run.params["scale"]
    mask, dmask = (run.inputs["mask"], run.moved("mask")) if "mask" in run.inputs else (0.0, 0.0)
    scores = scale * x + mask
    finite = np.where(np.isneginf(scores), 0.0, np.abs(scores))
    ds = abs(scale) * dx + dmask + run.u * (2 * np.abs(scale * x) + finite)
    if scale != 1:
        ds = ds + run.between(np.abs(scale * x))
    if "mask" in run.inputs:
        ds = ds + run.between(finite)
    L = x.shape[-1]
    scores, ds = with_sinks(run, scores, ds)
    p, limit, spread = (t[..., :L] for t in softmax_terms(run.u, scores, ds, ds / math.sqrt(3)))
    total, error = sum_of_exponentials(run.u, scores)
    terms = Terms().add(p * limit, p * spread)
    terms.groups = int(alike(error / total, math.sqrt(L / 3) * run.u))
    return run.rounded(terms)


def mask_before_scale(op, inputs, params):
    if "mask" not in inputs or params["scale"] == 1:
        return None
    mask = inputs["mask"].values().astype(np.float32) * params["scale"]
    return answer(op, {**inputs, "mask": stored(mask)}, params)


def sum_without_tail(block: int) -> Wrong:
    """Leave the scores after the last whole block out of the sum, but not their own results."""

    def wrong(op, inputs, params):
        kept = inputs["x"].shape[-1] // block * block
        if kept in (0, inputs["x"].shape[-1]):
            return None
        y = op.answer(Arithmetic(FLOAT64), inputs, params)
        left = 1 - y[..., kept:].sum(axis=-1, keepdims=True)
        return (y / left).astype(np.float32)

    return wrong


def softmax_over_columns(op, inputs, params):
    if inputs["x"].values().ndim < 2:
        return None
    x = inputs["x"].values() * np.float32(params["scale"])
    x = x + (inputs["mask"].values().astype(np.float32) if "mask" in inputs else 0)
    e = np.exp(x - x.max(axis=-2, keepdims=True))
    return e / e.sum(axis=-2, keepdims=True)


def maximum_from(start: float) -> Wrong:
    """Search the maximum from `start` on: in a row whose scores are all below it no score has a weight, 0 / 0."""

    def wrong(op, inputs, params):
        s = inputs["x"].values() * params["scale"] + (inputs["mask"].values() if "mask" in inputs else 0.0)
        top = s.max(axis=-1, keepdims=True)
        return np.where((top < start) & np.isfinite(top), np.float32(np.nan), answer(op, inputs, params))

    return wrong


def maximum_of_some(count: int) -> Wrong:
    """Take the maximum of the first `count` scores of each row, or 0; in float32, so that others may overflow."""

    def wrong(op, inputs, params):
        if inputs["x"].shape[-1] <= count or "sinks" in inputs:
            return None
        s = inputs["x"].values() * params["scale"] + (inputs["mask"].values() if "mask" in inputs else 0.0)
        with np.errstate(all="ignore"):
            top = s[..., :count].max(axis=-1, keepdims=True) if count else 0.0
            e = np.exp((s - top).astype(np.float32))
            return (e / e.sum(axis=-1, keepdims=True)).astype(np.float32)

    return wrong


def masked_afterwards(change) -> Wrong:
    """Apply the mask to the softmax of all scores. change: its weights, the mask -> weights"""
    bare = without("mask")

    def wrong(op, inputs, params):
        y = bare(op, inputs, params)
        return None if y is None else change(y, inputs["mask"].values())

    return wrong


def negated_where_finite(m):
    return np.where(np.isinf(m), m, -m)


SOFTMAX = Operation(
    "softmax",
    "Softmax over the last axis of scale * x + mask; -inf masks. A sink is one more score, left out again.",
    family="attention",
    inputs={"x": "[..., L]", "mask?": "broadcastable to x", "sinks?": "[H], x being [B, H, L, J]"},
    output="[..., L]",
    params={"scale": 1.0},
    run=_run,
    bound=_bound,
    mutants=(
        *(
            Mutant(f"the maximum is sought from {start:g} on, not from -inf", maximum_from(start))
            for start in (-1e4, -32752.0)
        ),
        Mutant(NO_MAXIMUM, maximum_of_some(0)),
        *(
            Mutant(f"the maximum of the first {n} scores alone", maximum_of_some(n))
            for n in (32, 64, 128, 256, 512)
        ),
        *(Mutant(f"the sum without its tail after whole blocks of {n}", sum_without_tail(n)) for n in TAILS),
        Mutant("over columns", softmax_over_columns),
        Mutant("mask ignored", without("mask")),
        Mutant("scale missing", lambda op, i, p: answer(op, i, {**p, "scale": 1.0}) if p["scale"] != 1 else None),
        Mutant("mask subtracted", other_input("mask", negated_where_finite)),
        Mutant("mask scaled too", mask_before_scale),
        Mutant("mask added after the softmax", masked_afterwards(np.add)),
        Mutant(
            "mask applied after the softmax, whose sum has all keys", masked_afterwards(lambda p, m: p * np.exp(m))
        ),
        Mutant("scores silently float16", other_input("x", to_float16)),
        Mutant("-inf as a large negative number", other_input("mask", lambda m: np.maximum(m, -20))),
        *(Mutant(f"rows from {rows} on not computed", rows_left_out(rows)) for rows in (512, 1024)),
        *MANY_ROWS,
        Mutant("sinks ignored", without("sinks")),
        Mutant("sinks of the next head", other_input("sinks", lambda s: np.roll(s, 1))),
    ),
    cases=(
        Case("softmax/f32/plain-x33x77", "softmax", {"x": Recipe((33, 77))}),
        # Rows longer than most work-groups, whose largest score is far above the others.
        Case("softmax/f32/long-x9x1100", "softmax", {"x": Recipe((9, 1100), exponent=-7)}),
        # Scores below half of float16's lowest number.
        Case("softmax/f32/low-x20x77", "softmax", {"x": Recipe((20, 77), offset=-40000.0)}),
        Case(
            "softmax/f32/scaled-x2x3x20x77",
            "softmax",
            {"x": Recipe((2, 3, 20, 77), exponent=-12)},
            {"scale": 0.125},
        ),
        Case(
            "softmax/f32/masked-x2x2x20x33",
            "softmax",
            {"x": Recipe((2, 2, 20, 33), exponent=-13), "mask": Recipe((20, 33), "f16")},
            {"scale": 0.25},
        ),
        Case(
            "softmax/f32/hidden-x2x2x20x33",
            "softmax",
            {"x": Recipe((2, 2, 20, 33), exponent=-13), "mask": Recipe((20, 33), "f16", "masked")},
        ),
        # More rows than an engine starts at once.
        Case("softmax/f32/many-x1100x9", "softmax", {"x": Recipe((1100, 9), exponent=-13)}),
        # More rows than 16 bits can count.
        Case("softmax/f32/rows-x65600x2", "softmax", {"x": Recipe((65600, 2), exponent=-13)}),
        Case(
            "softmax/f32/sinks-x2x3x20x33",
            "softmax",
            {"x": Recipe((2, 3, 20, 33), exponent=-13), "sinks": Recipe((3,), exponent=-13)},
        ),
    ),
)

OPERATIONS = (SOFTMAX,)
