"""Group normalisation, alone and followed by SiLU."""

import math
from collections.abc import Callable

import numpy as np

from refsd.golden.bounds import FUNCTION, Run
from refsd.golden.case import Case
from refsd.golden.mutations import BATCH, EPS, NO_WEIGHT, ZERO_BIAS, Wrong, answer, eps_in_the_sum, other_params
from refsd.golden.operation import IMAGE, Mutant, Operation, values
from refsd.golden.operations.activations import QUICK_GELU, SILU, rational_sigmoid
from refsd.golden.operations.normalisation import ONE_PASS, SUM_IN_FLOAT16, UNBIASED, Affine, norm_axis
from refsd.golden.recipe import Recipe
from refsd.golden.rounding import Bound, Terms
from refsd.numerics.tensor import stored


def _run(a, inputs, params):
    weight, bias = a.expand(inputs["weight"]), a.expand(inputs["bias"])
    return a.group_norm(values(a, inputs["x"]), weight, bias, params["num_groups"], params["eps"])


def _run_silu(a, inputs, params):
    weight, bias = a.expand(inputs["weight"]), a.expand(inputs["bias"])
    return a.group_norm_silu(values(a, inputs["x"]), weight, bias, params["num_groups"], params["eps"])


def _whole_groups(shapes, params) -> bool:
    return params["num_groups"] >= 1 and shapes["x"][1] % params["num_groups"] == 0


def _bound(run: Run) -> Bound:
    """norm_axis over a group's channels and pixels; normalisation.py derives it."""
    x = run.inputs["x"]
    N, C, H, W = x.shape
    G = run.params["num_groups"]
    rows = (N, G, C // G * H * W)

    def per_channel(t):
        return np.broadcast_to(t[None, :, None, None], x.shape).reshape(rows)

    w, dw = run.inputs["weight"], run.moved("weight")
    b, db = run.inputs["bias"], run.moved("bias")
    affine = Affine(per_channel(w), per_channel(dw), per_channel(b), per_channel(db))
    one_pass = "group_norm" in run.numerics.one_pass
    terms = norm_axis(run, x.reshape(rows), run.moved("x").reshape(rows), affine, True, one_pass)
    terms.limit, terms.square = terms.limit.reshape(x.shape), terms.square.reshape(x.shape)
    return run.rounded(terms)


def _bound_silu(run: Run) -> Bound:
    """|silu'| <= 1.1 times the error of the normalised z, the rounding between the two included; then SiLU's."""
    x, G, eps = run.inputs["x"], run.params["num_groups"], run.params["eps"]
    rows = x.reshape(x.shape[0], G, -1)
    mean = rows.mean(axis=2, keepdims=True)
    z = ((rows - mean) / np.sqrt(rows.var(axis=2, keepdims=True) + eps)).reshape(x.shape)
    z = z * run.inputs["weight"][:, None, None] + run.inputs["bias"][:, None, None]
    inner = _bound(run._replace(truth=z))
    terms = Terms().add(1.1 * inner.limit, 1.1 * inner.spread)
    terms.groups = inner.groups
    noise = run.u * (FUNCTION + 2 + 2 * np.abs(z)) * np.abs(run.truth)
    return run.rounded(terms.add(noise, noise / FUNCTION).add(rational_sigmoid(run, z)))


def reads_on(block: int) -> Wrong:
    """A group's sums also take in the numbers that follow it, up to a multiple of `block`."""

    def wrong(op, inputs, params):
        x = inputs["x"].values()
        flat = x.astype(np.float64).ravel()
        size = flat.size // len(x) // params["num_groups"]
        read = -(-size // block) * block
        if read == size:
            return None
        y = np.empty_like(flat)
        for start in range(0, flat.size, size):
            some, own = flat[start : start + read], flat[start : start + size]
            mean = some.sum() / size
            y[start : start + size] = (own - mean) / np.sqrt((some**2).sum() / size - mean**2 + params["eps"])
        y = y.reshape(x.shape) * inputs["weight"].values()[:, None, None] + inputs["bias"].values()[:, None, None]
        return y.astype(np.float32)

    return wrong


def over_the_batch(op, inputs, params):
    """Normalise all items of the batch as one group."""
    x = inputs["x"].values().astype(np.float64)
    y = (x - x.mean()) / np.sqrt(x.var() + params["eps"])
    y = y * inputs["weight"].values()[:, None, None] + inputs["bias"].values()[:, None, None]
    return y.astype(np.float32)


def parts_in_the_other_order(share: float) -> Wrong:
    """Move the last `share` of the channels to the front, as if two joined parts were in the other order."""

    def wrong(op, inputs, params):
        x = inputs["x"].values()
        C = x.shape[1]
        moved = round(C * share)
        if moved in (0, C) or abs(moved - C * share) > 1e-6:
            return None
        return answer(op, {**inputs, "x": stored(np.ascontiguousarray(np.roll(x, moved, axis=1)))}, params)

    return wrong


def squares_in_float16(op, inputs, params):
    """Sum the squares in float16, which a large picture overflows: then the norm gives its bias alone."""
    x = inputs["x"].values().astype(np.float32)
    rows = x.reshape(len(x), params["num_groups"], -1)
    centred = rows - rows.mean(axis=2, keepdims=True)
    with np.errstate(over="ignore"):
        half = (centred * centred).astype(np.float16)
        square = np.add.accumulate(half, axis=2, dtype=np.float16)[..., -1:].astype(np.float32)
    y = (centred / np.sqrt(square / rows.shape[2] + np.float32(params["eps"]))).reshape(x.shape)
    return y * inputs["weight"].values()[:, None, None] + inputs["bias"].values()[:, None, None]


def affine_of(which: Callable[[int, int], np.ndarray]) -> Wrong:
    """Take weight and bias of other channels. which: channels, groups -> for each channel, that of its own"""

    def wrong(op, inputs, params):
        C, G = inputs["x"].shape[1], params["num_groups"]
        at = which(C, G)
        if np.array_equal(at, np.arange(C)):
            return None
        affine = {name: stored(inputs[name].values()[at]) for name in ("weight", "bias")}
        return answer(op, {**inputs, **affine}, params)

    return wrong


_AFFINE = (
    Mutant("weight and bias indexed within the group", affine_of(lambda C, G: np.arange(C) % (C // G))),
    Mutant("weight and bias indexed by the group", affine_of(lambda C, G: np.arange(C) // (C // G))),
)


def silu_first(op, inputs, params):
    x = answer(SILU, {"x": inputs["x"]}, {})
    return answer(GROUP_NORM, {**inputs, "x": stored(x)}, params)


def activated_by(activation: Operation) -> Wrong:
    def wrong(op, inputs, params):
        return answer(activation, {"x": stored(answer(GROUP_NORM, inputs, params))}, {})

    return wrong


def _case(label: str, x: tuple[int, int, int, int], num_groups=32, eps=1e-5, **of_x) -> Case:
    N, C, H, W = x
    inputs = {
        "x": Recipe(x, **of_x),
        "weight": Recipe((C,), offset=1.0),
        "bias": Recipe((C,)),
    }
    name = f"group_norm/f32/{label}-n{N}-c{C}-h{H}-w{W}-g{num_groups}"
    return Case(name, "group_norm", inputs, {"num_groups": num_groups, "eps": eps})


def _case_silu(label: str, x: tuple[int, int, int, int], **how) -> Case:
    plain = _case(label, x, **how)
    return Case(plain.name.replace("group_norm", "group_norm_silu"), "group_norm_silu", plain.inputs, plain.params)


_EPS_IN_THE_GROUP = eps_in_the_sum(
    "a group's number of elements", lambda shape, params: math.prod(shape[1:]) // params["num_groups"]
)

GROUP_NORM = Operation(
    "group_norm",
    "Normalise each group of channels, scale and shift each channel.",
    family="norms",
    inputs={"x": IMAGE, "weight": "[C]", "bias": "[C]"},
    output=IMAGE,
    channel=1,
    params={"num_groups": 32, "eps": 1e-5},
    run=_run,
    fits=_whole_groups,
    bound=_bound,
    mutants=(
        *EPS,
        _EPS_IN_THE_GROUP,
        ONE_PASS,
        UNBIASED,
        ZERO_BIAS,
        NO_WEIGHT,
        Mutant("a group a channel", lambda op, i, p: answer(op, i, {**p, "num_groups": i["x"].shape[1]})),
        Mutant("one group", other_params(num_groups=lambda g: 1)),
        BATCH,
        *_AFFINE,
        *(
            Mutant(f"sums read on into the next group, to {n} numbers", reads_on(n))
            for n in (32, 64, 128, 256, 512)
        ),
        Mutant("one group of the whole batch", over_the_batch),
        *(
            Mutant(f"joined parts in the other order (b first): {name}", parts_in_the_other_order(share))
            for name, share in (("half", 1 / 2), ("a third", 1 / 3), ("two thirds", 2 / 3), ("a quarter", 1 / 4))
        ),
        Mutant("squares summed in float16", squares_in_float16),
        SUM_IN_FLOAT16,
    ),
    cases=(
        _case("plain", (2, 64, 9, 7)),
        _case("unet", (2, 320, 5, 4)),
        _case("vae", (1, 96, 6, 11), eps=1e-6),
        _case("tiny", (2, 64, 6, 5), data="tiny"),
        _case("mean", (2, 64, 6, 5), data="shifted"),
        _case("loud", (2, 64, 5, 6), exponent=-6),
        # Numbers in float16's range, whose sum is not.
        _case("summed", (1, 64, 5, 7), exponent=-10, offset=2000.0),
        _case("groups", (3, 33, 4, 5), num_groups=11),
        # Some engines take a single group for one a channel.
        _case("one", (2, 20, 5, 7), num_groups=1),
        _case("outliers", (1, 64, 8, 6), data="outliers"),
        # A shape that an engine may store as [N, C].
        _case("flat", (3, 64, 1, 1), num_groups=4),
        _case("large", (1, 8, 33, 40), num_groups=2),
    ),
)

GROUP_NORM_SILU = Operation(
    "group_norm_silu",
    "Group normalisation, then SiLU.",
    family="norms",
    inputs={"x": IMAGE, "weight": "[C]", "bias": "[C]"},
    output=IMAGE,
    channel=1,
    params={"num_groups": 32, "eps": 1e-5},
    run=_run_silu,
    fits=_whole_groups,
    bound=_bound_silu,
    mutants=(
        *EPS,
        _EPS_IN_THE_GROUP,
        ZERO_BIAS,
        NO_WEIGHT,
        *_AFFINE,
        Mutant("SiLU before the norm", silu_first),
        Mutant("no SiLU", lambda op, i, p: answer(GROUP_NORM, i, p)),
        Mutant("quick GELU for SiLU", activated_by(QUICK_GELU)),
        Mutant("one group", other_params(num_groups=lambda g: 1)),
    ),
    cases=(
        _case_silu("plain", (2, 64, 9, 7)),
        _case_silu("tiny", (2, 64, 6, 5), data="tiny"),
        _case_silu("groups", (3, 33, 4, 5), num_groups=11, eps=1e-6),
    ),
)

OPERATIONS = (GROUP_NORM, GROUP_NORM_SILU)
