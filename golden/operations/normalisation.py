"""The bound of a normalised row, and bugs, that all normalisations share."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from refsd.golden.bounds import Run
from refsd.golden.case import Case
from refsd.golden.mutations import Wrong, answer, first_of_batch, other_input, to_float16
from refsd.golden.operation import Mutant
from refsd.golden.recipe import Recipe
from refsd.golden.rounding import Bound, Terms, alike, gamma, serial_error

TOKENS = "[N, L, D]"
# Above this eps / v, rows have nearly the same reciprocal root.
_ONE_R = 8.0


class Affine(NamedTuple):
    """A norm's weight and bias, and the errors of storing them; each broadcasts to the rows."""

    weight: np.ndarray
    dw: np.ndarray
    bias: np.ndarray
    db: np.ndarray


def norm_axis(run: Run, x, dx, affine: Affine, centred: bool, one_pass: bool = False) -> Terms:
    """Return the error terms of rows [..., n] normalised over the last axis.

    y = (x - m) r w + b, r = (v + eps)^(-1/2). With c = x - m:
    dm <= gamma(n) E|x| + E[dx] + u |m|;  dv <= 2 sqrt(v) rms(dx + dm) + rms(dx + dm)^2 + gamma(n) v
    dr / r <= dv / (2 (v + eps)), and dy <= |w| r (dx + dm + |c| dr/r + 4u |c|) + |c| r dw + db + u |b|
    sm, sv, sr are the spreads of m, v, r: the same terms as independent roundings. em, ev are the errors of m and v
    if a row is summed one number after another in float32; where they exceed the spreads, they are taken.
    Where eps is most of v + eps, all rows have nearly one r, and share its rounding. Sums may be serial.

    one_pass: _one_pass's dv and dr / r; y may be x (r w) + (b - m (r w)), which loses 4u |m| r |w| more
    """
    n, u, eps = x.shape[-1], run.u, run.params["eps"]
    weight, dw, b, db = affine

    def mean(t):
        return t.mean(axis=-1, keepdims=True)

    m = mean(x) if centred else np.zeros_like(x[..., :1])
    c = x - m
    v = mean(c**2)
    r = 1 / np.sqrt(v + eps)
    dm = gamma(n, u) * mean(np.abs(x)) + mean(dx) + u * np.abs(m) if centred else 0.0
    sm = np.sqrt(n / 3 * mean(x**2)) * u + np.sqrt(mean(dx**2) / 3 / n) + u * np.abs(m) if centred else 0.0
    shift = np.sqrt(mean(dx**2)) + dm
    dv = 2 * np.sqrt(v) * shift + shift**2 + gamma(n + 3, u) * v
    # To first order, a shift of the mean does not change the variance.
    sv = 2 * np.sqrt(v * mean(dx**2) / 3 / n) + np.sqrt(n / 3) * u * v + 3 * u * v + sm**2
    em, ev = serial_error(x, u) / n if centred else 0.0, serial_error(c**2, u) / n
    one_error = np.median(v) < eps / _ONE_R or alike(em, sm) or alike(ev, sv)
    sm, sv = np.maximum(sm, np.abs(em)), np.maximum(sv, np.abs(ev))
    dr, sr = dv / (2 * (v + eps)), sv / (2 * (v + eps))
    terms = Terms()
    terms.groups = int(one_error)
    if one_pass:
        dr, sr = _one_pass(n, u, m, v, eps, (dm, sm), (dv, sv))
        terms.add(4 * u * np.abs(weight * m) * r, 2 * u * np.abs(weight * m) * r)
    terms.add(np.abs(weight) * r * dx)
    terms.add(np.abs(weight) * r * dm, np.abs(weight) * r * sm)
    terms.add(np.abs(weight * c) * r * dr, np.abs(weight * c) * r * sr)
    terms.add(4 * u * np.abs(weight * c) * r, 2 * u * np.abs(weight * c) * r)
    return terms.add(np.abs(c) * r * dw).add(db).add(u * np.abs(b))


def _one_pass(n, u, m, v, eps, of_mean, of_variance):
    """Return dr / r and its spread where v is max(E[x^2] - m^2, 0).

    dv <= gamma(n + 3) (v + m^2) + 2 |m| dm + dm^2 + u (|m| + dm)^2 more. It may be as large as v, so exactly:
    dr / r <= sqrt((v + eps) / (max(v - dv, 0) + eps)) - 1
    """
    (dm, sm), (dv, sv) = of_mean, of_variance
    square = v + m**2
    dv = dv + gamma(n + 3, u) * square + 2 * np.abs(m) * dm + dm**2 + u * (np.abs(m) + dm) ** 2
    sv = sv + np.sqrt((n / 3 + 3) * (u * square) ** 2 + (2 * m * sm) ** 2)
    dr = np.sqrt((v + eps) / (np.maximum(v - dv, 0) + eps)) - 1
    return dr, np.minimum(sv / (2 * (v + eps)), dr)


def row_norm(run: Run, centred: bool) -> Bound:
    x = run.inputs["x"]
    w, dw = (run.inputs["weight"], run.moved("weight")) if "weight" in run.inputs else (np.ones(1), np.zeros(1))
    b, db = (run.inputs["bias"], run.moved("bias")) if "bias" in run.inputs else (np.zeros(1), np.zeros(1))
    one_pass = centred and "layer_norm" in run.numerics.one_pass
    return run.rounded(norm_axis(run, x, run.moved("x"), Affine(w, dw, b, db), centred, one_pass))


def per_item(run: Run, name: str):
    """Return the magnitudes of an input [N, D] and the errors of storing it, as [N, 1, D] for every token."""
    return np.abs(run.inputs[name])[:, None], run.moved(name)[:, None]


def normalised(x, axis, eps, ddof=0, one_pass=False, half_sum=False):
    """half_sum: the sum that the mean is taken from is kept in float16"""
    x = x.astype(np.float32)
    mean = x.mean(axis=axis, keepdims=True)
    if half_sum:
        mean = to_float16(mean * np.float32(x.shape[axis])) / np.float32(x.shape[axis])
        variance = ((x - mean) ** 2).mean(axis=axis, keepdims=True)
    elif one_pass:
        variance = np.maximum((x * x).mean(axis=axis, keepdims=True) - mean * mean, 0)
    else:
        variance = x.var(axis=axis, keepdims=True, ddof=ddof)
    return (x - mean) / np.sqrt(variance + np.float32(eps))


def wrong_norm(**how) -> Wrong:
    def wrong(op, inputs, params):
        x = inputs["x"].values()
        if op.name == "group_norm":
            y = normalised(x.reshape(x.shape[0], params["num_groups"], -1), 2, params["eps"], **how).reshape(
                x.shape
            )
            return y * inputs["weight"].values()[:, None, None] + inputs["bias"].values()[:, None, None]
        y = normalised(x, -1, params["eps"], **how)
        y = y * inputs["weight"].values() if "weight" in inputs else y
        return y + inputs["bias"].values() if "bias" in inputs else y

    return wrong


def exchanged(a: str, b: str) -> Wrong:
    return lambda op, inputs, params: answer(op, {**inputs, a: inputs[b], b: inputs[a]}, params)


CONDITIONED = (
    Mutant("scale and shift exchanged", exchanged("scale", "shift")),
    Mutant("scale alone, without its 1", other_input("scale", lambda s: s - 1)),
    Mutant("1 + scale rounded to float16", other_input("scale", lambda s: to_float16(1 + s) - 1)),
    Mutant("shift missing", other_input("shift", np.zeros_like)),
    Mutant("every item conditioned as the first", other_input("scale", first_of_batch)),
)


def partial_sums(kept: Callable[[int], np.ndarray | None], centred: bool) -> Wrong:
    """Leave some of a row's numbers out of sums, but divide by all. kept: length -> which; None: no difference"""

    def wrong(op, inputs, params):
        x = inputs["x"].values().astype(np.float64)
        counted = kept(x.shape[-1])
        if counted is None:
            return None
        n, eps = x.shape[-1], params["eps"]
        mean = (x * counted).sum(axis=-1, keepdims=True) / n if centred else np.zeros_like(x[..., :1])
        square = (((x - mean) * counted) ** 2).sum(axis=-1, keepdims=True) / n
        y = (x - mean) / np.sqrt(square + eps)
        y = y * inputs["weight"].values() if "weight" in inputs else y
        return (y + inputs["bias"].values() if "bias" in inputs else y).astype(np.float32)

    return wrong


def _without_tail(block: int) -> Callable[[int], np.ndarray | None]:
    return lambda n: np.arange(n) < n // block * block if n % block and n > block else None


def _without_last_whole(block: int) -> Callable[[int], np.ndarray | None]:
    def kept(n: int) -> np.ndarray | None:
        last = n // block * block
        return (np.arange(n) < last - block) | (np.arange(n) >= last) if n % block and n > block else None

    return kept


def _without_first(block: int) -> Callable[[int], np.ndarray | None]:
    return lambda n: np.arange(n) >= block if n % block and n > block else None


def sums_of_blocks(centred: bool) -> tuple[Mutant[Wrong], ...]:
    """Return bugs that lose part of a row's sum if its length is no multiple of a block."""
    return tuple(
        Mutant(f"{what} of {block} left out of the sums", partial_sums(of(block), centred))
        for block in (8, 32)
        for what, of in (
            ("a row's tail after whole blocks", _without_tail),
            ("the last whole block", _without_last_whole),
            ("the first block", _without_first),
        )
    )


def squares_in_float16(op, inputs, params):
    """Sum the squares in float16, one number after the other."""
    x = inputs["x"].values().astype(np.float32)
    half = x.astype(np.float16)
    square = np.add.accumulate((half * half).astype(np.float16), axis=-1, dtype=np.float16)[..., -1:].astype(
        np.float32
    )
    if op.name == "l2_norm":
        return x / np.maximum(np.sqrt(square), np.float32(params["eps"]))
    y = x / np.sqrt(square / x.shape[-1] + np.float32(params["eps"]))
    return y * inputs["weight"].values() if "weight" in inputs else y


SQUARES_IN_FLOAT16 = Mutant("squares summed in float16", squares_in_float16)

ONE_PASS = Mutant("variance as E[x^2] - E[x]^2 in float32", wrong_norm(one_pass=True))

SUM_IN_FLOAT16 = Mutant("the mean's sum in float16: infinite beyond 65504", wrong_norm(half_sum=True))

UNBIASED = Mutant("variance divided by n - 1", wrong_norm(ddof=1))


def tokens_case(
    op: str, label: str, x: tuple[int, int, int], names: tuple[str, ...], data="bell", **params
) -> Case:
    """Make a case of tokens [N, L, D], and inputs [N, D] for each item (h: tokens too)."""
    N, L, D = x
    inputs = {"x": Recipe(x, data=data)} | {name: Recipe(x if name == "h" else (N, D)) for name in names}
    return Case(f"{op}/f32/{label}-n{N}-l{L}-d{D}", op, inputs, params)
