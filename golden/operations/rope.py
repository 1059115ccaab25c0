"""Rotary position embedding."""

import numpy as np

from refsd.golden.bounds import FUNCTION, Run
from refsd.golden.case import Case
from refsd.golden.mutations import other_input, other_params
from refsd.golden.operation import REQUIRED, Mutant, Operation, values
from refsd.golden.recipe import Recipe
from refsd.golden.rounding import Bound, Terms
from refsd.kernels.rope import apply_rope, apply_rope_halves


def _run(a, inputs, params):
    angle = a.rope_angles(inputs["ids"].values(), tuple(params["axes_dim"]), params["theta"])
    turn = a.rope_halves if params["halves"] else a.rope
    return turn(values(a, inputs["x"]), angle)


def _bound(run: Run) -> Bound:
    """y = c a - s b, c and s of p f, f = theta^(-2i/d).

    f by powf or exp has 2 u ln(theta) 2i/d + 4 u, by repeated multiplication 2 i u more; |dy| <= |c| da + |s| db +
    (p df + 4 u)(|a| + |b|) + 2 u (|a| + |b|)
    """
    x, dx = run.inputs["x"], run.moved("x")
    p = np.abs(run.inputs["ids"])
    off = []
    for axis, dim in enumerate(run.params["axes_dim"]):
        i = np.arange(dim // 2)
        ratio = np.log(run.params["theta"]) * 2 * i / dim
        off.append(p[..., axis, None] * np.exp(-ratio) * run.u * (2 * ratio + 2 * i + FUNCTION + 2))
    off = np.minimum(np.concatenate(off, axis=-1), 2.0)[:, :, None] + (FUNCTION + 2) * run.u
    pairs = _halves if run.params["halves"] else _neighbours
    limit = [off * sum(np.abs(t) for t in pairs(x)) + sum(pairs(dx))] * 2
    together = np.concatenate(limit, axis=-1) if run.params["halves"] else np.stack(limit, axis=-1).reshape(x.shape)
    return run.rounded(Terms().add(together, together / FUNCTION))


def _neighbours(x):
    return x[..., 0::2], x[..., 1::2]


def _halves(x):
    return np.split(x, 2, axis=-1)


def turned_as_one_axis(op, inputs, params):
    """Frequencies over the whole head, not anew for each axis."""
    axes_dim = params["axes_dim"]
    ids = np.repeat(inputs["ids"].values(), [dim // 2 for dim in axes_dim], axis=-1)
    f = params["theta"] ** -(np.arange(ids.shape[-1]) / ids.shape[-1])
    turn = apply_rope_halves if params["halves"] else apply_rope
    return turn(inputs["x"].values(), ids * f)


def heads_as_tokens(x: np.ndarray) -> np.ndarray | None:
    """[N, H, L, D] taken for [N, L, H, D]."""
    N, L, H, D = x.shape
    return np.ascontiguousarray(x.reshape(N, H, L, D).transpose(0, 2, 1, 3)) if H > 1 else None


def _case(
    label: str, x: tuple[int, int, int, int], axes_dim: tuple[int, ...], theta: float, items=1, **how
) -> Case:
    """Positions in 0..48."""
    N, L, H, D = x
    ids = Recipe((items, L, len(axes_dim)), "i32", data="token_ids", exponent=0, n=48)
    name = f"rope/f32/{label}-n{N}-l{L}-h{H}-d{D}"
    return Case(name, "rope", {"x": Recipe(x), "ids": ids}, {"axes_dim": axes_dim, "theta": theta, **how})


ROPE = Operation(
    "rope",
    "Turn pairs of channels by position * theta^(-2i/dim) of their axis; halves pairs i with D/2 + i.",
    inputs={"x": "[N, L, H, D]", "ids": "[N or 1, L, A]"},
    output="[N, L, H, D]",
    params={"axes_dim": REQUIRED, "theta": 10000.0, "halves": False},
    run=_run,
    bound=_bound,
    mutants=(
        Mutant("the other pairing", other_params(halves=lambda halves: not halves)),
        Mutant("turned the other way", other_input("ids", np.negative)),
        Mutant("positions from one", other_input("ids", lambda ids: ids + 1)),
        Mutant("theta 10000 always", other_params(theta=lambda theta: 10000.0)),
        Mutant("axes in the other order", other_input("ids", lambda ids: ids[..., ::-1])),
        Mutant("frequencies over the whole head", turned_as_one_axis),
        Mutant("every token at the first position", other_input("ids", lambda ids: ids[:, :1] + 0 * ids)),
        Mutant("heads and tokens mixed", other_input("x", heads_as_tokens)),
    ),
    cases=(
        _case("flux", (2, 20, 3, 128), (16, 56, 56), 1e4),
        _case("flux2", (1, 10, 3, 128), (32, 32, 32, 32), 2000.0),
        _case("zimage", (2, 20, 3, 128), (32, 48, 48), 256.0, items=2),
        _case("qwen3", (1, 33, 4, 128), (128,), 1e6, halves=True),
        _case("neighbours", (2, 33, 3, 20), (20,), 500.0),
    ),
)


OPERATIONS = (ROPE,)
