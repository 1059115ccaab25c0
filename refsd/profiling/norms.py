"""Ask how a norm computes its variance, and in which type it adds up squares."""

import numpy as np

from refsd.profiling.products import Ask
from refsd.profiling.question import Finding, Questioner
from refsd.profiling.types import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, narrowest

# Mean -> numbers in a row. Rows of mean +- 1 are exact in a type with one bit more than the mean; their squares add
# up to more than 24 bits, so that E[x^2] - E[x]^2 loses the variance of 1. One for each storage type.
_MEANS = {FLOAT32: (2.0**12, 1024), FLOAT16: (2.0**10, 4096), BFLOAT16: (2.0**7, 65536)}
_LOSS = 0.02  # relative error of the standard deviation
_ROW = 64


def layer_norm(questioner: Questioner, x: np.ndarray) -> np.ndarray:
    """x [D] -> [D]"""
    return questioner.ask("layer_norm", (2, len(x)), {"eps": 1e-6}, x=np.stack([x, x]))[0]


def rms_norm(questioner: Questioner, x: np.ndarray) -> np.ndarray:
    return questioner.ask("rms_norm", (2, len(x)), {"eps": 1e-6}, x=np.stack([x, x]), weight=np.ones(len(x)))[0]


def group_norm(questioner: Questioner, x: np.ndarray) -> np.ndarray:
    """Two groups of two channels, both of the same pixels."""
    picture = np.concatenate([x, x]).reshape(1, 4, -1, 16)
    ones, params = np.ones(4), {"num_groups": 2, "eps": 1e-6}
    y = questioner.ask("group_norm", picture.shape, params, x=picture, weight=ones, bias=0 * ones)
    return y.reshape(2, -1)[0]


def variance(op: str, norm) -> Ask:
    """Return the question whether the variance is E[x^2] - E[x]^2."""

    def ask(questioner: Questioner) -> list[Finding]:
        kind = _result(questioner, norm)
        mean, count = _MEANS[FLOAT32 if kind == FLOAT64 else kind]
        sign = np.where(np.arange(count) * 7919 % 16 < 8, 1.0, -1.0)
        y = norm(questioner, mean + sign)
        spread = float(np.std(y)) if np.isfinite(y).all() else np.nan
        one_pass = not abs(spread - 1) < _LOSS
        value = "E[x^2] - E[x]^2" if one_pass else "two passes, or in float64"
        evidence = (
            f"{mean:g} + 1 and {mean:g} - 1, {count} of them, came back with a deviation of {spread:.4g} for 1"
        )
        return [Finding(op, "variance", value, evidence)]

    return ask


def _result(questioner: Questioner, norm) -> str:
    return narrowest(norm(questioner, np.linspace(-1, 3.7, _ROW * 2)))


def squares(op: str, norm) -> Ask:
    """Return the question whether squares beyond float16's range count, and in which type the result is stored."""

    def ask(questioner: Questioner) -> list[Finding]:
        y = norm(questioner, np.where(np.arange(_ROW * 2) % 2, 300.0, -300.0))
        kept = np.isclose(np.abs(y), 1, rtol=0.05).all()
        evidence = f"+-300, whose squares exceed 65504, came back as +-{np.abs(y).max():.4g}"
        kind = _result(questioner, norm)
        return [
            Finding(op, "squares", FLOAT32 if kept else FLOAT16, evidence),
            Finding(op, "result", kind, f"{_ROW * 2} results are all numbers of {kind}"),
        ]

    return ask


NORMS = {"group_norm": group_norm, "layer_norm": layer_norm, "rms_norm": rms_norm}
