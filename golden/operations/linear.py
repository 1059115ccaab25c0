"""Linear layers."""

import math

import numpy as np

from refsd.golden.block_activations import OTHERWISE, block_of, moved_otherwise, patterns, steps
from refsd.golden.block_mutants import block_mutants
from refsd.golden.bounds import Run, bias_of, sums
from refsd.golden.case import Case
from refsd.golden.mutations import (
    BATCH,
    F16_INPUT,
    F16_WEIGHT,
    MANY_ROWS,
    NO_BIAS,
    Wrong,
    answer,
    other_input,
    rows_beyond_half_the_columns,
)
from refsd.golden.operation import Mutant, Operation, optional, values
from refsd.golden.recipe import Recipe
from refsd.golden.rounding import Bound, Terms, largest, serial_error
from refsd.kernels.quant import BLOCK_TYPES
from refsd.kernels.quant.dot_q8_1 import minimums
from refsd.numerics.profiles import GGML_CPU
from refsd.numerics.tensor import StoredTensor, stored


def _run(a, inputs, params):
    weight = inputs["weight"]
    return a.linear(values(a, inputs["x"]), a.expand(weight), optional(a, inputs, "bias"), weight.product_type)


def _blocks(weight: StoredTensor) -> np.ndarray:
    return weight.data.reshape(-1, BLOCK_TYPES[weight.type].bytes)


def _bound(run: Run) -> Bound:
    """y = W x + b: |W| dx + dW (|x| + dx), the sum of K products and b, the rounding of y.

    Q8_1 activations also store the sum of each 32 values in float16; W's minimums multiply this sum. Its error,
    32 half steps and half a unit of at most 32 times 127 steps, is what dx counts for 32 values. A sum beyond
    65504 is infinite there, and with it the row.
    """
    through = run.numerics.input_of(run.stored["weight"].product_type)
    W, dW = np.abs(run.inputs["weight"]), run.moved("weight", run.numerics.products)
    if through == "q8_1":
        m = np.repeat(minimums(_blocks(run.stored["weight"])), 32).reshape(W.shape).astype(np.float64)
        W = np.abs(run.inputs["weight"] - m) + np.abs(m)
    x = np.abs(run.inputs["x"])
    dx = run.moved("x", through)
    b, db = bias_of(run)
    terms = Terms()
    # What the storage holds exactly costs no product.
    if dx.any():
        terms.add(dx @ W.T, np.sqrt(dx**2 @ (W**2).T / 3))
    if dW.any():
        terms.add((x + dx) @ dW.T, np.sqrt((x + dx) ** 2 @ (dW**2).T / 3))
    terms.add(db)
    if through == "q8_1":
        terms.add(np.where(_sums_overflow(run.inputs["x"], dx), np.inf, 0.0))
    absolute = (x + dx) @ (W + dW).T + b + db
    squares = (x + dx) ** 2 @ ((W + dW) ** 2).T + b**2
    limit, spread = sums(run, "linear", W.shape[1], absolute, squares, run.truth, through)
    terms.add(limit, np.maximum(spread, _serial(run.inputs["x"], run.inputs["weight"], run.u)))
    bound, block = run.rounded(terms), block_of(through)
    if not block or x.shape[-1] % block:
        return bound
    other = np.sqrt(np.maximum(bound.spread**2 - dx**2 @ (W**2).T / 3, 0))
    return bound._replace(patterns=patterns(bound, run.inputs["x"], run.inputs["weight"], block, other))


def _serial(x: np.ndarray, W: np.ndarray, u: float) -> np.ndarray:
    """Return the size of a serial sum's error in rows of few different numbers, whose terms round alike; else 0.

    x [..., K], W [O, K] -> [..., O]
    """
    K = x.shape[-1]
    rows = x.reshape(math.prod(x.shape[:-1]), K)
    error = np.zeros((len(rows), len(W)))
    ranked = np.sort(rows)
    repeated = (np.diff(ranked) == 0) & (ranked[:, 1:] != 0)
    few, row_of = np.unique(rows[repeated.sum(axis=-1) >= K / 2], axis=0, return_inverse=True)
    of_few = [serial_error(row * W, u)[:, 0] for row in few]
    if of_few:
        error[repeated.sum(axis=-1) >= K / 2] = np.array(of_few)[row_of.ravel()]
    return np.abs(error).reshape(*x.shape[:-1], len(W))


def _sums_overflow(x: np.ndarray, dx: np.ndarray) -> np.ndarray:
    """Return whether the sum of a block of 32 may be beyond float16. x, dx: [..., K] -> [..., 1]"""
    sums = [np.abs(t.reshape(*t.shape[:-1], -1, 32).sum(axis=-1)) for t in (x, dx)]
    return (sums[0] + sums[1] > largest(np.dtype(np.float16))).any(axis=-1, keepdims=True)


def read_as_transposed(w: np.ndarray) -> np.ndarray | None:
    """Read the memory as that of the transposed matrix."""
    return np.ascontiguousarray(w.reshape(w.shape[::-1]).T) if w.ndim == 2 and 1 not in w.shape else None


def without_tail(x: np.ndarray) -> np.ndarray:
    """Set to 0 what a loop over whole vectors of 32 leaves out; if nothing, the last 32."""
    K = x.shape[-1]
    y = x.copy()
    y[..., K - (K % 32 or 32) :] = 0
    return y


def lanes_dropped(lanes: int) -> Wrong:
    """Lose, of `lanes` sums side by side, those that the shorter last step does not fill."""

    def wrong(op, inputs, params):
        x = inputs["x"].values()
        K = x.shape[-1]
        tail = K % lanes
        if not tail or lanes > K:
            return None
        kept = (np.arange(K) % lanes < tail) | (np.arange(K) >= K - tail)
        return answer(op, {**inputs, "x": stored(np.where(kept, x, 0).astype(np.float32))}, params)

    return wrong


def shifted_rows(x: np.ndarray) -> np.ndarray | None:
    """Begin row i at number i, not at i K."""
    K = x.shape[-1]
    rows = x.reshape(-1, K)
    if len(rows) < 2:
        return None
    flat = np.append(rows.ravel(), np.zeros(K, x.dtype))
    return np.stack([flat[i : i + K] for i in range(len(rows))]).reshape(x.shape)


def nan_of_zero_blocks(op, inputs, params):
    """Blocks of 32 zeros give NaN: x / d, with d from their largest number, 0."""
    x = inputs["x"].values()
    if inputs["weight"].type not in BLOCK_TYPES or x.shape[-1] % 32:
        return None
    zero = (x.reshape(*x.shape[:-1], -1, 32) == 0).all(axis=-1).any(axis=-1)
    return np.where(zero[..., None], np.float32(np.nan), answer(op, inputs, params)) if zero.any() else None


def without_faint_scales(op, inputs, params):
    """Scales below float16's normal numbers are read as 0."""
    weight = inputs["weight"]
    if weight.type not in _BLOCK32:
        return None
    w = weight.values().reshape(-1, 32)
    d = np.ascontiguousarray(weight.data.reshape(len(w), -1)[:, :2]).view(np.float16)
    kept = np.where(np.abs(d) < np.finfo(np.float16).smallest_normal, np.float32(0), w)
    return answer(op, {**inputs, "weight": stored(kept.reshape(weight.shape))}, params)


def rounded_otherwise(bug: str):
    """Round activations in blocks otherwise than to the nearest code: what the engine errs beyond that."""

    def wrong(op, inputs, params):
        x, weight = inputs["x"].values(), inputs["weight"]
        block = block_of(GGML_CPU.input_of(weight.product_type))
        if weight.type not in BLOCK_TYPES or not block or x.shape[-1] % block:
            return None
        wide = x.astype(np.float64)
        step = steps(wide, block)
        codes = np.rint(np.divide(wide, step, out=np.zeros_like(wide), where=step > 0))
        moved = dict(moved_otherwise(x, block))[bug] - codes * step
        return answer(op, {**inputs, "x": stored((x + moved).astype(np.float32))}, params)

    return wrong


_SCALAR = ("f32", "f16", "bf16")

_BLOCK32 = ("q4_0", "q8_0")

_BLOCK256 = ("q4_k", "q6_k")

_FEW_BITS = ("iq1_m", "iq2_xxs", "iq3_s", "iq4_nl", "iq4_xs", "tq1_0", "mxfp4", "nvfp4", "q1_0", "q2_0")

_FLOAT8 = ("f8_e4m3", "f8_e5m2")

# Less common types.
_RARE = ("q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "q5_k")


def _case(
    label: str,
    type: str,
    x: tuple[int, ...],
    out: int,
    bias=True,
    x_data="bell",
    w_data="bell",
    w_exponent=-19,
    **x_recipe,
):
    """One linear case; the weight's exponent keeps outputs near 1."""
    K = x[-1]
    weight = Recipe((out, K), type, data=w_data, exponent=w_exponent)
    inputs = {"x": Recipe(x, data=x_data, **x_recipe), "weight": weight}
    if bias:
        inputs["bias"] = Recipe((out,))
    if w_data == "integers":
        inputs["weight"] = Recipe((out, K), type, data=w_data, exponent=0)
    shape = "x".join(map(str, x))
    return Case(f"linear/{type}/{label}-x{shape}-o{out}", "linear", inputs)


LINEAR = Operation(
    "linear",
    "Multiply by a matrix of any storage type, add a bias.",
    family="linear",
    inputs={"x": "[..., K]", "weight": "[O, K]", "bias?": "[O]"},
    output="[..., O]",
    run=_run,
    bound=_bound,
    mutants=(
        Mutant("weight read as its transpose", other_input("weight", read_as_transposed)),
        NO_BIAS,
        Mutant("last columns left out", other_input("x", without_tail)),
        *(
            Mutant(f"sums of lanes that the last of {n} do not fill are lost", lanes_dropped(n))
            for n in (4, 8, 16, 32)
        ),
        Mutant("row i read from number i on, not from i K", other_input("x", shifted_rows)),
        Mutant("NaN where a block of x is zero", nan_of_zero_blocks),
        Mutant("scales of blocks that are subnormal in float16 are read as 0", without_faint_scales),
        *MANY_ROWS,
        Mutant("rows from half as many as columns on not computed", rows_beyond_half_the_columns),
        BATCH,
        F16_INPUT,
        F16_WEIGHT,
        *block_mutants("weight"),
        *(Mutant(bug, rounded_otherwise(bug)) for bug in OTHERWISE),
    ),
    cases=(
        *(_case("awkward", t, (2, 33, 77), 20) for t in _SCALAR),
        *(_case("tokens", t, (77, 320), 33) for t in (*_SCALAR, *_BLOCK32)),
        *(_case("tokens", t, (33, 512), 77) for t in _BLOCK256),
        # An odd number of blocks, for loops that take two at a time.
        *(_case("odd", t, (7, 160), 33) for t in _BLOCK32),
        *(_case("row", t, (1, 320), 77, bias=False) for t in (*_SCALAR, *_BLOCK32)),
        *(_case("row", t, (1, 768), 33, bias=False) for t in _BLOCK256),
        # One row goes by code of its own, whose vectors leave a tail along K and along O here.
        *(_case("row", t, (1, K), 20, bias=False) for t, K in (("f32", 77), ("f16", 77), ("q8_0", 160))),
        *(_case("outliers", t, (9, 256), 20, x_data="outliers") for t in ("f16", "q8_0", "q4_k")),
        *(
            _case("integers", t, (5, 96), 40, x_data="integers", w_data="integers", exponent=0)
            for t in ("f32", "f16")
        ),
        _case("mean", "f32", (7, 320), 33, offset=8.0),
        # As many rows as outputs: a bias may be added along either.
        _case("square", "f32", (20, 77), 20),
        # As many inputs as outputs: the weight's transpose has its shape.
        _case("square-weight", "f32", (7, 77), 77),
        _case("square-weight", "q8_0", (5, 96), 96),
        # Rows that end in zeros: whole blocks of them.
        *(_case("zeros", t, (5, 256), 33, x_data="prefix", exponent=0, n=40) for t in ("q8_0", "q4_0", "q4_k")),
        *(_case("faint", t, (7, 160), 33, bias=False, w_exponent=-27) for t in _BLOCK32),
        _case("small", "f32", (7, 132), 33, bias=False, exponent=-45),
        _case("wide", "f32", (7, 132), 33, x_data="wide"),
        _case("positive", "f32", (7, 320), 33, x_data="positive"),
        # Inputs in float16's range, outputs beyond 65504.
        _case("loud", "f16", (7, 640), 77, exponent=-1),
        # More inputs, outputs and rows than a block has threads.
        *(
            _case("large", t, (3, K), 300)
            for t, K in (("f32", 2080), ("f16", 2080), ("q8_0", 2080), ("q4_k", 2304))
        ),
        _case("many", "f32", (1100, 20), 33),
        # More rows than columns, of one block each.
        *(_case("tall", t, (40, 32), 33) for t in _BLOCK32),
        # More rows than 16 bits can count, as the tokens of a video.
        _case("rows", "f32", (65600, 2), 2),
        *(_case("tokens", t, (20, 256), 33) for t in _RARE),
        *(_case("tokens", t, (9, 256), 20) for t in (*_FEW_BITS, *_FLOAT8)),
        # Three scales a row and more than 32 rows: memory of scales in pieces of 32 rows by 8.
        _case("narrow", "mxfp4", (5, 96), 64),
        *(_case("mean", t, (20, 256), 33, offset=8.0) for t in ("q4_1", "q5_1", "q4_k")),
    ),
)

OPERATIONS = (LINEAR,)
