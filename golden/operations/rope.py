"""Rotary position embedding."""

import ml_dtypes
import numpy as np

from refsd.golden.bounds import FUNCTION, Run
from refsd.golden.case import Case
from refsd.golden.mutations import Wrong, answer, first_of_batch, other_input, other_params
from refsd.golden.operation import REQUIRED, Mutant, Operation, values
from refsd.golden.recipe import Recipe
from refsd.golden.rounding import Bound, Terms
from refsd.numerics.tensor import stored


def _run(a, inputs, params):
    angle = a.rope_angles(inputs["ids"].values(), tuple(params["axes_dim"]), params["theta"])
    turn = a.rope_halves if params["halves"] else a.rope
    x, turned = values(a, inputs["x"]), sum(params["axes_dim"])
    if turned == x.shape[-1]:
        return turn(x, angle)
    first = np.ascontiguousarray(x[..., :turned])
    return np.concatenate([turn(first, angle), x[..., turned:]], axis=-1)


def _fits(shapes, params) -> bool:
    """Return True if the axes have even sizes that sum to no more than the head's width."""
    axes, width = params["axes_dim"], shapes["x"][-1]
    return len(axes) == shapes["ids"][-1] and sum(axes) <= width and all(n >= 2 and n % 2 == 0 for n in axes)


def _bound(run: Run) -> Bound:
    """y = c a - s b, c and s the cosine and sine of p f, f = theta^(-2i/d).

    f by powf or exp loses 2 u ln(theta) 2i/d + 4 u, by repeated products 2 i u more; |dy| <= |c| da + |s| db +
    (p df + 4 u)(|a| + |b|) + 2 u (|a| + |b|)
    """
    whole = run.inputs["x"].shape[-1]
    x, dx = (t[..., : sum(run.params["axes_dim"])] for t in (run.inputs["x"], run.moved("x")))
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
    rest = run.moved("x")[..., x.shape[-1] : whole]
    together = np.concatenate([together, rest], axis=-1)
    return run.rounded(Terms().add(together, together / FUNCTION))


def _neighbours(x):
    return x[..., 0::2], x[..., 1::2]


def _halves(x):
    return np.split(x, 2, axis=-1)


def _of_one_axis(inputs, params):
    """Return angles by frequencies over the whole head, instead of starting again for each axis."""
    ids = np.repeat(inputs["ids"].values(), [dim // 2 for dim in params["axes_dim"]], axis=-1)
    return ids * params["theta"] ** -(np.arange(ids.shape[-1]) * 2 / inputs["x"].shape[-1])


def pairs_of_the_whole_head(angles) -> Wrong:
    """Turn channel i with i + half of the whole head, not of the channels that are turned."""

    def wrong(op, inputs, params):
        x, turned = inputs["x"].values(), sum(params["axes_dim"])
        if not params["halves"] or turned == x.shape[-1]:
            return None
        there, y = np.arange(turned // 2) + np.array([[0], [x.shape[-1] // 2]]), x.astype(np.float32)
        own = {**inputs, "x": stored(x[..., there.ravel()])}
        y[..., there.ravel()] = turned_by(angles(inputs, params), op, own, params)
        return y

    return wrong


def turned_by(angles, op, inputs, params, sign=-1):
    """Rotate x by angles [N, L, D/2] or [N, L, H, D/2]. sign: of the second channel in the first one's sum"""
    x, turned = inputs["x"].values(), sum(params["axes_dim"])
    angles = angles if angles.ndim == 4 else angles[:, :, None]
    parts = (_halves if params["halves"] else _neighbours)(x[..., :turned].astype(np.float64))
    c, s = np.cos(angles), np.sin(angles)
    y = parts[0] * c + sign * parts[1] * s, parts[0] * s + parts[1] * c
    y = np.concatenate(y, axis=-1) if params["halves"] else np.stack(y, axis=-1).reshape(*x.shape[:-1], turned)
    return np.concatenate([y, x[..., turned:]], axis=-1).astype(np.float32)


def _angles(inputs, params, dtype=np.float64):
    """Return positions times frequencies, with both, and their products, rounded to a dtype."""
    ids, parts = inputs["ids"].values(), []
    for axis, dim in enumerate(params["axes_dim"]):
        f = (params["theta"] ** -(np.arange(0, dim, 2) / dim)).astype(dtype)
        parts.append((ids[..., axis, None].astype(dtype) * f).astype(np.float64))
    return np.concatenate(parts, axis=-1)


def angles_in(dtype) -> Wrong:
    return lambda op, inputs, params: turned_by(_angles(inputs, params, dtype), op, inputs, params)


def with_angles(change, sign=-1) -> Wrong:
    return lambda op, inputs, params: turned_by(change(_angles(inputs, params)), op, inputs, params, sign)


def rounded_to(dtype):
    return lambda angles: angles.astype(dtype).astype(np.float64)


def first_half_alone(angles: np.ndarray) -> np.ndarray:
    """Turn the first half of the pairs alone."""
    return angles * (np.arange(angles.shape[-1]) < angles.shape[-1] // 2)


def angles_of_heads(op, inputs, params):
    """Rotate head h by the angle of token h."""
    angles, H = _angles(inputs, params), inputs["x"].shape[2]
    if angles.shape[1] < H:
        return None
    return turned_by(angles[:, None, :H], op, inputs, params)


def tail_of_other_memory(op, inputs, params):
    """Copy the channels that are not rotated from [N, H, L, D] as if it were [N, L, H, D]."""
    x, turned = inputs["x"].values(), sum(params["axes_dim"])
    if turned == x.shape[-1]:
        return None
    y = answer(op, inputs, params)
    other = np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(x.shape)
    return np.concatenate([y[..., :turned], other[..., turned:]], axis=-1)


def in_place(op, inputs, params):
    """Turn the second channel of each pair with the first one's result, which stands where that was."""
    x, turned = inputs["x"].values(), sum(params["axes_dim"])
    channels = np.arange(x.shape[-1])
    first = (channels < turned // 2) if params["halves"] else (channels % 2 == 0) & (channels < turned)
    y = answer(op, inputs, params)
    later = {**inputs, "x": stored(np.where(first, y, x).astype(x.dtype))}
    return np.where(first, y, answer(op, later, params))


def tail_zero(op, inputs, params):
    turned = sum(params["axes_dim"])
    if turned == inputs["x"].shape[-1]:
        return None
    y = answer(op, inputs, params).copy()
    y[..., turned:] = 0
    return y


def heads_as_tokens(x: np.ndarray) -> np.ndarray | None:
    """Read [N, L, H, D] as if it were [N, H, L, D]."""
    N, L, H, D = x.shape
    return np.ascontiguousarray(x.reshape(N, H, L, D).transpose(0, 2, 1, 3)) if H > 1 else None


def rows_and_columns_exchanged(ids: np.ndarray) -> np.ndarray | None:
    """Exchange the second axis and the third; the first one is that of time or of pictures."""
    A = ids.shape[-1]
    return ids[..., [0, 2, 1, *range(3, A)]] if A > 2 else None


def _case(
    label: str, x: tuple[int, int, int, int], axes_dim: tuple[int, ...], theta: float, items=1, positions=48, **how
) -> Case:
    """Make a case with position ids below `positions`."""
    N, L, H, D = x
    ids = Recipe((items, L, len(axes_dim)), "i32", data="token_ids", exponent=0, n=positions)
    name = f"rope/f32/{label}-n{N}-l{L}-h{H}-d{D}"
    return Case(name, "rope", {"x": Recipe(x), "ids": ids}, {"axes_dim": axes_dim, "theta": theta, **how})


ROPE = Operation(
    "rope",
    "Turn pairs of channels by position * theta^(-2i/dim) of their axis; halves pairs i with D/2 + i of "
    "those that are turned. Channels behind the sum of axes_dim stay as they are.",
    family="positions",
    inputs={"x": "[N, L, H, D]", "ids": "[N or 1, L, A]"},
    output="[N, L, H, D]",
    params={"axes_dim": REQUIRED, "theta": 10000.0, "halves": False},
    run=_run,
    fits=_fits,
    bound=_bound,
    mutants=(
        Mutant("RoPE turns the other pairing of channels", other_params(halves=lambda halves: not halves)),
        Mutant("turned the other way", other_input("ids", np.negative)),
        Mutant("cosine and sine exchanged", with_angles(lambda angles: np.pi / 2 - angles)),
        Mutant("no channel of a pair is negated", with_angles(lambda angles: angles, sign=1)),
        Mutant("only the first half of the pairs turned", with_angles(first_half_alone)),
        Mutant("positions from one", other_input("ids", lambda ids: ids + 1)),
        Mutant("theta 10000 always", other_params(theta=lambda theta: 10000.0)),
        Mutant("axes in the other order", other_input("ids", lambda ids: ids[..., ::-1])),
        Mutant("rows and columns of positions exchanged", other_input("ids", rows_and_columns_exchanged)),
        Mutant("frequencies over the whole head", lambda op, i, p: turned_by(_of_one_axis(i, p), op, i, p)),
        Mutant("pairs half the whole head apart", pairs_of_the_whole_head(_angles)),
        Mutant("pairs half the whole head apart, and frequencies over it", pairs_of_the_whole_head(_of_one_axis)),
        Mutant("positions of the first item for all items", other_input("ids", first_of_batch)),
        Mutant("every token at the first position", other_input("ids", lambda ids: ids[:, :1] + 0 * ids)),
        Mutant("heads and tokens mixed", other_input("x", heads_as_tokens)),
        Mutant("angles in bfloat16", angles_in(ml_dtypes.bfloat16)),
        Mutant("angles in float16", angles_in(np.float16)),
        *(
            Mutant(f"angles rounded to {t.__name__}", with_angles(rounded_to(t)))
            for t in (np.float16, ml_dtypes.bfloat16)
        ),
        Mutant("heads turned as tokens", angles_of_heads),
        Mutant("turned in place: the second of each pair reads the first one's result", in_place),
        Mutant("channels that are not turned: of other memory", tail_of_other_memory),
        Mutant("channels that are not turned: zero", tail_zero),
    ),
    cases=(
        _case("flux", (2, 20, 3, 128), (16, 56, 56), 1e4),
        _case("flux2", (1, 10, 3, 128), (32, 32, 32, 32), 2000.0),
        _case("zimage", (2, 20, 3, 128), (32, 48, 48), 256.0, items=2),
        _case("qwen3", (1, 33, 4, 128), (128,), 1e6, halves=True),
        _case("neighbours", (2, 33, 3, 20), (20,), 500.0),
        _case("partial", (2, 9, 3, 32), (20,), 1e4),
        _case("partial-halves", (1, 12, 2, 40), (24,), 1e4, halves=True),
        _case("far", (1, 9, 2, 64), (64,), 1e4, positions=70000),
    ),
)

OPERATIONS = (ROPE,)
