"""How far an honest engine may be from the truth, element by element, derived from its numerics.

Each bound is a run of the operation on absolute values, as TOSA's conformance rule does it: it
scales with the data, where a fixed rtol, atol or NMSE does not. Terms are first order; u is the
relative error of one rounding (rounding.py), gamma(n) that of n in a row. Engines that sum in
another order, in blocks or in a wider type stay inside, since gamma(n) is the serial worst case.

An element whose bound overflows may be anything. An element whose bound is zero must be exact.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from refsd.golden.numerics import DTYPES, Numerics
from refsd.golden.operations import complete
from refsd.golden.rounding import Bound, Terms, floor, gamma, largest, moved, moved_by_type, moved_in_turn, unit
from refsd.golden.tensor import StoredTensor
from refsd.kernels.attention import causal_mask
from refsd.kernels.conv2d_im2col import conv2d_im2col

# Winograd F(4x4, 3x3), which an engine may choose for a 3x3 filter, magnifies a float32 rounding: measured 58 u
# relative to the norm of the output on a 64-channel layer (conv2d's limit must leave room for it).
_WINOGRAD = 64.0
# exp, erf, tanh, sin and cos of ordinary math libraries, in units of u.
_FUNCTION = 4.0
# erf's absolute error in units of u: Abramowitz & Stegun 7.1.26, which torch evaluates in float32, is 2.5 u off by
# itself, and was measured 8 u off.
_ERF = 12.0


class _Run(NamedTuple):
    """What every bound below is given: all arrays float64.

    inputs: the tensors' values; types: their storage types; truth: the float64 answer
    """

    numerics: Numerics
    inputs: Mapping[str, np.ndarray]
    types: Mapping[str, str]
    params: Mapping[str, Any]
    truth: np.ndarray

    @property
    def u(self) -> float:
        return unit(self.numerics.compute_dtype)

    def moved(self, name: str, through: str | None = None) -> np.ndarray:
        """What storing an input, and passing it through a type, does to it."""
        return moved_in_turn(self.inputs[name], self.numerics.storage, through)

    def rounded(self, terms: Terms, extra: Any = 0.0) -> Bound:
        """The terms, the rounding of the result, and flushed subnormals; `extra` is added to both sides."""
        storage = self.numerics.storage_dtype
        terms.add(unit(storage) * (np.abs(self.truth) + terms.limit))
        terms.add(floor(storage) + floor(self.numerics.compute_dtype) + extra)
        limit = np.where(np.abs(self.truth) + terms.limit > largest(storage), np.inf, terms.limit)
        return Terms().add(limit, np.sqrt(terms.square)).bound(self.truth.shape)


def _products(u: float, n: int, absolute, squares, result) -> tuple[Any, Any]:
    """Limit and spread of a sum of n products.

    limit:  gamma(n + 1) sum |w x|
    spread: step k rounds a partial sum s_k, E[s_k^2] <= sum t^2 k/n + result^2 (k/n)^2 for terms t in random
            order; the sum over k of u^2/3 E[s_k^2] is u^2 n/3 (sum t^2 / 2 + result^2 / 3)
    """
    return gamma(n + 1, u) * absolute, u * np.sqrt((n + 1) / 3 * (squares / 2 + result**2 / 3) + squares / 3)


def _bias(run: _Run) -> tuple[Any, Any]:
    if "bias" not in run.inputs:
        return 0.0, 0.0
    return np.abs(run.inputs["bias"]), run.moved("bias")


def _linear(run: _Run) -> Bound:
    """y = W x + b: |W| dx + dW (|x| + dx), the sum of K products and b, the rounding of y."""
    W, dW = np.abs(run.inputs["weight"]), run.moved("weight")
    x = np.abs(run.inputs["x"])
    dx = run.moved("x", run.numerics.activations.get(run.types["weight"]))
    b, db = _bias(run)
    terms = Terms().add(dx @ W.T, np.sqrt(dx**2 @ (W**2).T / 3))
    terms.add((x + dx) @ dW.T, np.sqrt((x + dx) ** 2 @ (dW**2).T / 3)).add(db)
    absolute = (x + dx) @ (W + dW).T + b + db
    squares = (x + dx) ** 2 @ ((W + dW) ** 2).T + b**2
    terms.add(*_products(run.u, W.shape[1], absolute, squares, run.truth))
    return run.rounded(terms)


def _conv2d(run: _Run) -> Bound:
    """linear's bound with patches for rows; a 3x3 filter of stride 1 may be Winograd's."""
    stride, padding = run.params["stride"], tuple(run.params["padding"])
    weight = run.inputs["weight"]
    K, C, R, S = weight.shape
    none = np.zeros(K)

    def sum_of(x, w):
        return conv2d_im2col(np.ascontiguousarray(x), np.ascontiguousarray(w), none, stride, padding)

    W, dW = np.abs(weight), run.moved("weight", run.numerics.conv)
    x, dx = np.abs(run.inputs["x"]), run.moved("x", run.numerics.conv)
    b, db = (np.reshape(t, (-1, 1, 1)) for t in _bias(run))
    terms = Terms().add(sum_of(dx, W), np.sqrt(sum_of(dx**2, W**2) / 3))
    terms.add(sum_of(x + dx, dW), np.sqrt(sum_of((x + dx) ** 2, dW**2) / 3)).add(db)
    absolute = sum_of(x + dx, W + dW) + b + db
    squares = sum_of((x + dx) ** 2, (W + dW) ** 2) + b**2
    terms.add(*_products(run.u, C * R * S, absolute, squares, run.truth))
    if R == S == 3 and stride == 1:
        typical = _WINOGRAD * run.u * np.sqrt(squares.max(axis=(2, 3), keepdims=True))
        terms.add(8 * typical, typical)
    return run.rounded(terms)


class _Affine(NamedTuple):
    """A norm's weight and bias, and what storing them moves; each broadcasts to its rows."""

    weight: np.ndarray
    dw: np.ndarray
    bias: np.ndarray
    db: np.ndarray


def _norm_axis(run: _Run, x, dx, affine: _Affine, centred: bool) -> Terms:
    """Rows [..., n] normalised over the last axis.

    y = (x - m) r w + b, r = (v + eps)^(-1/2). With c = x - m:
    dm <= gamma(n) E|x| + E[dx] + u |m|;  dv <= 2 sqrt(v) rms(dx + dm) + rms(dx + dm)^2 + gamma(n) v
    dr / r <= dv / (2 (v + eps)), and dy <= |w| r (dx + dm + |c| dr/r + 4u |c|) + |c| r dw + db + u |b|
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
    # A shift of the mean leaves the variance alone to first order.
    sv = 2 * np.sqrt(v * mean(dx**2) / 3 / n) + np.sqrt(n / 3) * u * v + 3 * u * v + sm**2
    terms = Terms().add(np.abs(weight) * r * dx)
    terms.add(np.abs(weight) * r * dm, np.abs(weight) * r * sm)
    terms.add(np.abs(weight * c) * r * dv / (2 * (v + eps)), np.abs(weight * c) * r * sv / (2 * (v + eps)))
    terms.add(4 * u * np.abs(weight * c) * r, 2 * u * np.abs(weight * c) * r)
    return terms.add(np.abs(c) * r * dw).add(db).add(u * np.abs(b))


def _group_norm(run: _Run) -> Bound:
    """_norm_axis over a group's channels and pixels."""
    x = run.inputs["x"]
    N, C, H, W = x.shape
    G = run.params["num_groups"]
    rows = (N, G, C // G * H * W)

    def per_channel(t):
        return np.broadcast_to(t[None, :, None, None], x.shape).reshape(rows)

    w, dw = run.inputs["weight"], run.moved("weight")
    b, db = run.inputs["bias"], run.moved("bias")
    affine = _Affine(per_channel(w), per_channel(dw), per_channel(b), per_channel(db))
    terms = _norm_axis(run, x.reshape(rows), run.moved("x").reshape(rows), affine, True)
    terms.limit, terms.square = terms.limit.reshape(x.shape), terms.square.reshape(x.shape)
    return run.rounded(terms)


def _row_norm(run: _Run, centred: bool) -> Bound:
    x = run.inputs["x"]
    w, dw = (run.inputs["weight"], run.moved("weight")) if "weight" in run.inputs else (np.ones(1), np.zeros(1))
    b, db = (run.inputs["bias"], run.moved("bias")) if "bias" in run.inputs else (np.zeros(1), np.zeros(1))
    return run.rounded(_norm_axis(run, x, run.moved("x"), _Affine(w, dw, b, db), centred))


def _activation(slope: float, relative: Callable[[np.ndarray], Any], near: Callable[[np.ndarray], Any]):
    """y = x g(x): |y'| dx + u (relative(x) |y| + near(x)), with |y'| <= slope.

    relative: what g's argument and its value lose, relative to y, in units of u
    near:     what g loses near 0, where 1 + erf or 1 + tanh cancel, times |x|, in units of u
    A table (numerics.gelu) rounds x before and y after.
    """

    def bound(run: _Run) -> Bound:
        return run.rounded(
            _activation_terms(run, run.inputs["x"], run.moved("x"), run.truth, slope, relative, near)
        )

    return bound


def _activation_terms(run: _Run, x, dx, y, slope, relative, near) -> Terms:
    table = run.numerics.gelu if slope > _SILU_SLOPE else None
    dx = dx + moved_by_type(x, table)
    terms = Terms().add(slope * dx)
    noise = run.u * (_FUNCTION * np.abs(y) + relative(x) * np.abs(y) + near(x))
    terms.add(noise, noise / _FUNCTION)
    if table is not None:
        f16 = DTYPES["float16"]
        terms.add(unit(f16) * np.abs(y) + float(2.0**-25), np.abs(moved(y, f16)) / math.sqrt(3))
    return terms


_SILU_SLOPE = 1.1
_GELU = (
    1.13,
    lambda x: 2.0,
    lambda x: _ERF * np.abs(x) / 2,
)
_GELU_TANH = (
    1.13,
    lambda x: 2.0,
    lambda x: (_FUNCTION + 4 * _slope_of_tanh(x)) * np.abs(x) / 2,
)
# In float32 exp(-x) overflows below -88.7, and x / inf is 0 where the truth is not yet: it is |x| 2^-128 at most.
_OVERFLOW = 2.0**-104
# exp(-a x): the product's rounding moves the exponent by u |a x|, felt where the sigmoid is not yet 1.
_SILU = (_SILU_SLOPE, lambda x: np.where(x < 0, 1.0, 0.0) * 2, lambda x: _OVERFLOW * np.abs(x))
_QUICK_GELU = (
    1.12,
    lambda x: 2 + 1.702 * np.abs(x) / (1 + np.exp(np.clip(1.702 * x, -60, 60))),
    lambda x: _OVERFLOW * np.abs(x),
)


def _slope_of_tanh(x):
    a = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return np.abs(a) / np.cosh(np.clip(a, -300, 300)) ** 2


def _geglu(run: _Run) -> Bound:
    """y = v gelu(g): dv |gelu(g)| + |v| dgelu, and the product's rounding."""
    v, g = np.split(run.inputs["x"], 2, axis=-1)
    dv, dg = np.split(run.moved("x"), 2, axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        gelu = np.where(v != 0, run.truth / v, 0.0)
    inner = _activation_terms(run, g, dg, gelu, *_GELU)
    inner.add(unit(run.numerics.storage_dtype) * np.abs(gelu))
    terms = Terms().add(np.abs(v) * inner.limit, np.abs(v) * np.sqrt(inner.square)).add(dv * np.abs(gelu))
    return run.rounded(terms, extra=floor(run.numerics.storage_dtype) * np.abs(v))


def _softmax_terms(u: float, scores, ds, ss) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """p, and the relative error of p as limit and spread.

    p_j = exp(s_j - m) / sum exp: a change ds moves log p_j by ds_j - sum p ds; s - m rounds by u |s - m|;
    exp, the sum of L terms and the quotient add 4 u + gamma(L).
    """
    peak = scores.max(axis=-1, keepdims=True)
    below = np.where(np.isneginf(scores), 0.0, peak - scores)
    e = np.exp(-below) * ~np.isneginf(scores)
    p = e / e.sum(axis=-1, keepdims=True)
    n = scores.shape[-1]
    each = np.where(np.isneginf(scores), 0.0, ds) + u * below
    spread = np.where(np.isneginf(scores), 0.0, ss) + u * below / math.sqrt(3)
    limit = each + (p * each).sum(axis=-1, keepdims=True) + 2 * _FUNCTION * u + gamma(n, u)
    spread = np.hypot(spread, np.sqrt((p**2 * spread**2).sum(axis=-1, keepdims=True))) + (2 + math.sqrt(n / 3)) * u
    return p, np.expm1(np.minimum(limit, 700)), spread


def _softmax(run: _Run) -> Bound:
    """_softmax_terms of scale x + mask."""
    x, dx, scale = run.inputs["x"], run.moved("x"), run.params["scale"]
    mask, dmask = (run.inputs["mask"], run.moved("mask")) if "mask" in run.inputs else (0.0, 0.0)
    scores = scale * x + mask
    ds = abs(scale) * dx + dmask + run.u * (2 * np.abs(scale * x) + np.abs(scores))
    p, limit, spread = _softmax_terms(run.u, scores, ds, ds / math.sqrt(3))
    return run.rounded(Terms().add(p * limit, p * spread))


def _attention(run: _Run) -> Bound:
    """y = p v: sum p rho |v| with rho the relative error of p, p dv, and the sum over J keys.

    s = scale q.k + mask: scale (|q| dk + dq |k| + gamma(D) |q||k|). Fused attention in float16 rounds q, k, v and
    the mask, and may sum p v in float16; an engine that stores float16 or bfloat16 may round s and p to it.
    """
    flash = run.numerics.flash
    q, k, v = (run.inputs[name].transpose(0, 2, 1, 3) for name in ("q", "k", "v"))
    dq, dk, dv = (run.moved(name, flash).transpose(0, 2, 1, 3) for name in ("q", "k", "v"))
    scale = run.params["scale"] or q.shape[-1] ** -0.5
    u, u_store = run.u, unit(run.numerics.storage_dtype)
    mask, dmask = 0.0, 0.0
    if "mask" in run.inputs:
        mask, dmask = run.inputs["mask"], moved_by_type(run.inputs["mask"], flash)
    if run.params["causal"]:
        mask = causal_mask(q.shape[2], np.dtype(np.float64))

    def dot(a, b):
        return a @ b.swapaxes(-1, -2)

    scores = scale * dot(q, k) + mask
    finite = np.where(np.isneginf(scores), 0.0, np.abs(scores))
    absolute, squares = dot(np.abs(q) + dq, np.abs(k) + dk), dot((np.abs(q) + dq) ** 2, (np.abs(k) + dk) ** 2)
    terms = Terms().add(
        scale * (dot(dq, np.abs(k)) + dot(np.abs(q) + dq, dk)),
        scale * np.sqrt((dot(dq**2, k**2) + dot(q**2, dk**2)) / 3),
    )
    limit, spread = _products(u, q.shape[-1], absolute, squares, dot(q, k))
    terms.add(abs(scale) * limit, abs(scale) * spread).add(dmask).add(3 * u * finite)
    if u_store > u:
        terms.add(u_store * finite)
    p, rho, rho_spread = _softmax_terms(u, scores, terms.limit, np.sqrt(terms.square))
    half_sum = flash is not None and run.numerics.flash_sum == "f16"
    u_p = max(u, unit(DTYPES["float16"])) if half_sum else max(u, u_store)
    w, pv = np.abs(v) + dv, p @ (np.abs(v) + dv)
    total = Terms().add((p * rho) @ w, np.sqrt((p * rho_spread) ** 2 @ w**2)).add(p @ dv, np.sqrt(p**2 @ dv**2 / 3))
    total.add(u_p * pv)
    truth = run.truth.transpose(0, 2, 1, 3)
    # In float16 the running sum is rounded again whenever a new peak rescales it.
    u_sum, roundings = (unit(DTYPES["float16"]), 2) if half_sum else (u, 1)
    total.add(*_products(u_sum, roundings * p.shape[-1], pv, p**2 @ w**2, truth))
    total.limit, total.square = total.limit.transpose(0, 2, 1, 3), total.square.transpose(0, 2, 1, 3)
    return run.rounded(total)


def _timestep_embedding(run: _Run) -> Bound:
    """cos(t f), f = exp(-ln(P) j / half): f has 2 u ln(P) j / half + 4 u, the angle t f one rounding more."""
    t, dt = run.inputs["t"][:, None], run.moved("t")[:, None]
    half = run.params["dim"] // 2
    ratio = np.log(run.params["max_period"]) * np.arange(half) / max(half, 1)
    f = np.exp(-ratio)
    angle = np.abs(t) * f * run.u * (2 * ratio + _FUNCTION + 1) + dt * f
    limit = np.minimum(angle, 2.0) + _FUNCTION * run.u
    zero = np.zeros((t.shape[0], run.params["dim"] % 2))
    limit = np.concatenate([limit, limit, zero], axis=1)
    return run.rounded(Terms().add(limit, limit / _FUNCTION))


def _movement(of: str, conv: bool = False) -> Callable[[_Run], Bound]:
    """Numbers change their place only: exact, but for a storage type that cannot hold them."""

    def bound(run: _Run) -> Bound:
        through = run.numerics.conv if conv else None
        limit = moved_in_turn(run.truth, run.numerics.storage, through)
        return Terms().add(limit).bound(run.truth.shape)

    return bound


_BOUNDS: dict[str, Callable[[_Run], Bound]] = {
    "linear": _linear,
    "conv2d": _conv2d,
    "im2col": _movement("x", conv=True),
    "group_norm": _group_norm,
    "layer_norm": lambda run: _row_norm(run, True),
    "rms_norm": lambda run: _row_norm(run, False),
    "silu": _activation(*_SILU),
    "gelu": _activation(*_GELU),
    "gelu_tanh": _activation(*_GELU_TANH),
    "quick_gelu": _activation(*_QUICK_GELU),
    "geglu": _geglu,
    "softmax": _softmax,
    "attention": _attention,
    "timestep_embedding": _timestep_embedding,
    "upsample_nearest": _movement("x"),
    "embedding": _movement("weight"),
    "dequantize": _movement("x"),
}


def bound(
    op: str, numerics: Numerics, inputs: Mapping[str, StoredTensor], params: Mapping[str, Any], truth: np.ndarray
) -> Bound:
    """Error bound of one operation's output "y" under the numerics. truth: the float64 answer.

    Raises BadInput for an unknown operation, see operations.complete.
    """
    full = complete(op, inputs, params)
    values = {name: np.asarray(tensor.values(), np.float64) for name, tensor in inputs.items()}
    types = {name: tensor.type for name, tensor in inputs.items()}
    with np.errstate(over="ignore", invalid="ignore"):
        return _BOUNDS[op](_Run(numerics, values, types, full, np.asarray(truth, np.float64)))
