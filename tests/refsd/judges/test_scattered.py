"""Random roundings give each element what an honest engine loses there."""

import numpy as np
import pytest

from refsd.causes.model.observed import Observed
from refsd.golden.taps import measure_taps
from refsd.golden.verdict import judge_output
from refsd.judges.scattered import Scattered
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT32, FLOAT64, TORCH_BF16, TORCH_F16, TORCH_F32

N, C, K = 1, 64, 48
rng = np.random.default_rng(18)
X = rng.standard_normal((N, K, 1, 2)).astype(np.float32)
X[..., 1] = X[..., 0] + np.float32(1e-5) * X[..., 1]


def drawn(rng):
    """Draw weights. The first group has 4 numbers that are nearly the same: the norm multiplies errors by 300."""
    weight = rng.standard_normal((C, K, 1, 1)).astype(np.float32)
    weight[1] = weight[0] + np.float32(1e-5) * weight[1]
    return weight


WEIGHT = drawn(rng)
ONES, ZEROS = np.ones(C, np.float32), np.zeros(C, np.float32)


def normed(a: Arithmetic, eps=1e-5, weight=WEIGHT):
    """A convolution and a norm of 32 groups of 4 numbers: 2 channels of 2 pixels. -> [N, C, 1, 2]"""
    x, weight = a.store(X), np.asarray(a._round(weight), a.numerics.compute_dtype)
    y = a.conv2d(x, weight, ZEROS.astype(weight.dtype))
    return a.group_norm(y, ONES.astype(weight.dtype), ZEROS.astype(weight.dtype), 32, eps)


def judged(found, numerics, scattered: bool, weight=WEIGHT):
    truth, honest = {"y": normed(Arithmetic(FLOAT64), weight=weight)}, Observed(numerics)
    near = {"y": normed(honest, weight=weight)}
    of_calls = []
    runs = [normed(Scattered(numerics, np.random.default_rng(s), of_calls), weight=weight) for s in range(8)]
    spread = np.sqrt(np.mean([(y.astype(np.float64) - truth["y"]) ** 2 for y in runs], axis=0))
    (m,) = measure_taps(
        {"y": found}, truth, near, numerics, {"y": max(honest.losses)}, {"y": spread} if scattered else {}
    )
    return judge_output(m)


class Backwards(Arithmetic):
    """Sums in the other order."""

    def conv2d(self, x, weight, bias, *more):
        y = np.zeros((N, C, 1, 2), np.float32)
        for k in reversed(range(K)):
            y += weight[None, :, k] * np.asarray(x, np.float32)[:, None, k]
        return self._round(y)


@pytest.mark.parametrize("numerics", [FLOAT32, TORCH_F32, TORCH_F16, TORCH_BF16], ids=lambda n: n.name)
def test_another_order_of_sums_is_honest(numerics):
    assert judged(normed(Backwards(numerics)), numerics, True).margin < 0.8


def test_one_rms_for_all_elements_would_be_a_false_alarm():
    """Nearly all that an honest engine loses, it loses in one group: the honest run may be lucky there.

    In which draw it is lucky depends on the order in which this CPU's BLAS sums.
    """
    weights = (drawn(np.random.default_rng(seed)) for seed in range(200))
    assert not all(judged(normed(Backwards(FLOAT32), weight=w), FLOAT32, False, w).passed for w in weights)


WRONG = {
    "eps": lambda numerics: normed(Arithmetic(numerics), 1e-6),
    "gain": lambda numerics: normed(Arithmetic(numerics)) * 1.02,
    "channels turned": lambda numerics: normed(Arithmetic(numerics), weight=np.roll(WEIGHT, 1, axis=0)),
}


@pytest.mark.parametrize(
    ("bug", "numerics"),
    [("eps", FLOAT32), ("gain", FLOAT32), ("gain", TORCH_F16), ("channels turned", TORCH_BF16)],
    ids=lambda p: p if isinstance(p, str) else p.name,
)
def test_what_is_wrong_stays_wrong(bug, numerics):
    assert not judged(WRONG[bug](numerics), numerics, True).passed
