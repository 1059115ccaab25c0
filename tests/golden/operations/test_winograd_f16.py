"""The bound of float16 Winograd: an honest engine stays inside, a bug or another rounding does not."""

import numpy as np
import pytest

from refsd.cases import CASES
from refsd.golden.case import Case
from refsd.golden.metrics import measure
from refsd.golden.operations import OPERATIONS, bound, complete, run
from refsd.golden.recipe import Recipe
from refsd.golden.verdict import judge
from refsd.kernels.conv2d_winograd_f16 import applies
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT32, FLOAT64, GGML_CPU, WINOGRAD_F16

WINOGRADS = [
    case
    for case in CASES.values()
    if case.op == "conv2d"
    and applies(case.inputs["weight"].shape, *complete("conv2d", case.inputs, case.params).values())
]


class Judge:
    """Of the answers to a case by engines that declare winograd-f16."""

    def __init__(self, case):
        self.inputs = case.realize()
        self.params = complete(case.op, self.inputs, case.params)
        self.truth, self.honest = (answer(n)(self.inputs, self.params) for n in (FLOAT64, WINOGRAD_F16))
        self.limits = bound(case.op, WINOGRAD_F16, self.inputs, self.params, self.truth)

    def __call__(self, y):
        channel = OPERATIONS["conv2d"].channel
        return judge([measure("y", y(self.inputs, self.params), self.truth, self.honest, self.limits, channel)])


def answer(numerics):
    return lambda inputs, params: run("conv2d", Arithmetic(numerics), inputs, params)["y"]


@pytest.mark.parametrize("case", WINOGRADS, ids=lambda case: case.name)
def test_honest_engines_pass(case):
    assert len(WINOGRADS) >= 8
    judged = Judge(case)
    for numerics in (WINOGRAD_F16, GGML_CPU, FLOAT32):
        result = judged(answer(numerics))
        assert result.passed, f"{numerics.name}: {result.reason}"


# What leaves float16's range may be anything.
_IN_RANGE = [case for case in WINOGRADS if "/loud-" not in case.name]


@pytest.mark.parametrize("case", _IN_RANGE, ids=lambda case: case.name)
def test_plain_bugs_fail(case):
    """All but what float16 does by itself."""
    judged = Judge(case)
    right = answer(FLOAT32)(judged.inputs, judged.params)
    for mutant in OPERATIONS["conv2d"].mutants:
        wrong = mutant.change(OPERATIONS[case.op], judged.inputs, judged.params)
        if wrong is None or "float16" in mutant.name or np.array_equal(wrong, right):
            continue
        assert not judged(lambda *_, wrong=wrong: wrong).passed, mutant.name


def wider(x, weight, tile):
    """The same by matrices of another tile, everything between the steps in float16."""
    from naive.conv2d_winograd import POINTS, cook_toom

    AT, G, BT = (np.array(M, np.float32) for M in cook_toom(tile, 3, POINTS[tile]))
    half = lambda v: v.astype(np.float16).astype(np.float32)
    x = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    N, _, H, W = x.shape
    U = half(G @ half(weight) @ G.T)
    y = np.empty((N, len(weight), H - 2, W - 2), np.float32)
    for p in range(0, H - 2, tile):
        for q in range(0, W - 2, tile):
            V = half(BT @ x[:, :, p : p + tile + 2, q : q + tile + 2] @ BT.T)
            M = half(np.einsum("kcij,ncij->nkij", U, V))
            y[:, :, p : p + tile, q : q + tile] = AT @ M @ AT.T
    return y


def test_the_tile_matters():
    """F(4x4) in float16 magnifies more than F(2x2): it does not pass for it."""
    case = Case(
        "conv2d/f16/four",
        "conv2d",
        {"x": Recipe((1, 64, 16, 16)), "weight": Recipe((8, 64, 3, 3), "f16", exponent=-19)},
        {"padding": (1, 1, 1, 1)},
    )
    judged = Judge(case)
    for tile, passes in ((2, True), (4, False)):
        result = judged(lambda i, _, tile=tile: wider(i["x"].values(), i["weight"].values(), tile))
        assert result.passed == passes, result.reason


def test_what_overflows_float16_may_be_anything():
    inputs = {"x": Recipe((1, 3, 4, 4), exponent=0), "weight": Recipe((2, 3, 3, 3), "f16", exponent=-15)}
    case = Case("conv2d/f16/huge", "conv2d", inputs, {"padding": (1, 1, 1, 1)})
    realized = case.realize()
    params = complete("conv2d", realized, case.params)
    truth = answer(FLOAT64)(realized, params)
    assert np.isinf(bound("conv2d", WINOGRAD_F16, realized, params, truth).limit).any()
