"""Ask in which type a function of one number reads its input and stores its result, and which formula it is."""

import numpy as np

from refsd.golden.operations import OPERATIONS
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64 as TRUTH
from refsd.numerics.tensor import stored
from refsd.profiling.products import Ask
from refsd.profiling.question import Finding, Questioner
from refsd.profiling.types import FLOAT32, narrowest, significand, type_of

_POWERS = np.arange(1, 24)
# Where a GELU by erf, one by tanh and one by the sigmoid differ by more than bfloat16's last place.
_BENDS = np.array([-2.25, -2.5, -3.0])
_TAIL = 0.1  # float16's subnormals lose less
_FORMULAS = {"gelu": "erf", "gelu_tanh": "tanh", "quick_gelu": "sigmoid"}


def unary(questioner: Questioner, op: str, x) -> np.ndarray:
    return questioner.ask(op, (len(x),), x=x)


def reads(questioner: Questioner, op: str) -> tuple[str, str]:
    """Tell 1 + 2^-k from 1. -> the type in which the function reads its input, evidence"""
    y = unary(questioner, op, np.append(1 + 2.0**-_POWERS, 1))
    bits = significand(y[:-1] != y[-1])
    shown = f"{op} of 1 + 2^-{min(bits, len(_POWERS))} was"
    return type_of(bits), f"{shown} {'that of 1' if bits <= len(_POWERS) else 'another number than that of 1'}"


def function(op: str) -> Ask:
    """Return the question for one function."""

    def ask(questioner: Questioner) -> list[Finding]:
        value, evidence = reads(questioner, op)
        # Far from 1, whose bits are asked for above; and what no table of halves holds.
        y = unary(questioner, op, np.linspace(0.3, 3.7, 77))
        kind = narrowest(y)
        held = f"{len(y)} results between {y.min():.3g} and {y.max():.3g} are all numbers of {kind}"
        found = [Finding(op, "input", value, evidence), Finding(op, "result", kind, held)]
        return found + (_formula(questioner, op) if op in _FORMULAS else [])

    return ask


def _formula(questioner: Questioner, op: str) -> list[Finding]:
    y = unary(questioner, op, _BENDS)
    x = {"x": stored(_BENDS.astype(np.float32))}
    near = {other: np.abs(y / OPERATIONS[other].answer(Arithmetic(TRUTH), x, {}) - 1).max() for other in _FORMULAS}
    nearest = min(near, key=lambda other: near[other])
    evidence = f"{op}(-2.25) = {y[0]:.6g}, nearest to the formula with {_FORMULAS[nearest]}"
    return [Finding(op, "formula", _FORMULAS[nearest], evidence)]


def flushed(questioner: Questioner) -> list[Finding]:
    """silu(-95) = -95 exp(-95) is below float32's normal numbers, silu(-80) is not."""
    x = np.array([-80.0, -95.0])
    y = unary(questioner, "silu", x)
    truth = x / (1 + np.exp(-x))
    kept = np.isclose(y, truth, rtol=1e-3, atol=0)
    value = "kept" if kept[1] else "flushed to 0" if kept[0] else "small results flushed to 0"
    evidence = f"silu(-80) = {y[0]:.3g}, silu(-95) = {y[1]:.3g}; exactly {truth[0]:.3g}, {truth[1]:.3g}"
    return [Finding("silu", "subnormal exponentials", value, evidence, declared=False)]


ABSOLUTE = "to an absolute error"


def tail(questioner: Questioner) -> list[Finding]:
    """silu(-17) = -7e-7, of which a rational function in place of exp has an absolute error, as onnxruntime's."""
    x = np.full(8, -17.0)
    y, truth = unary(questioner, "silu", x)[0], x[0] / (1 + np.exp(-x[0]))
    value = "to a relative error" if abs(y / truth - 1) < _TAIL else ABSOLUTE
    return [Finding("silu", "tail", value, f"silu(-17) = {y:.4g}, exactly {truth:.4g}")]


def not_a_number(questioner: Questioner) -> list[Finding]:
    y = unary(questioner, "relu", np.array([np.nan, 1.0]))[0]
    value = "passed on" if np.isnan(y) else "taken for a number"
    return [Finding("relu", "NaN", value, f"relu(NaN) = {y:g}", declared=False)]


def softmax_sum(questioner: Questioner) -> list[Finding]:
    """8192 equal scores: a sum of ones in float16 stays at 2048, in bfloat16 at 256."""
    n = 8192
    y = questioner.ask("softmax", (2, n), x=np.zeros((2, n)))[0, 0]
    total = 1 / y if y > 0 else np.inf
    kind = next((name for name, most in (("bfloat16", 256), ("float16", 2048)) if total <= most), FLOAT32)
    evidence = f"{n} equal scores gave 1 / {total:g} each"
    x = np.linspace(-4, 0, 64)[None] * np.ones((2, 1))
    stored_as = narrowest(questioner.ask("softmax", x.shape, x=x))
    held = f"64 probabilities are all numbers of {stored_as}"
    return [Finding("softmax", "sum", kind, evidence), Finding("softmax", "result", stored_as, held)]
