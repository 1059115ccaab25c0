"""Rows of a wrong tap that are rows of another tensor are found there; other rows are not."""

import numpy as np

from refsd.causes.model.gathered import other_rows, rows_of_taps
from refsd.causes.model.observed import Call
from refsd.numerics.tensor import stored

RNG = np.random.default_rng(9)
HIDDEN = RNG.standard_normal((2, 7, 24))
POOLED = HIDDEN[[0, 1], [4, 6]]
HONEST = POOLED * (1 + 2.0**-24 * RNG.standard_normal(POOLED.shape))


def test_rows_of_another_token():
    told = other_rows(HIDDEN[[0, 1], [4, 2]], POOLED, HONEST, {"hidden": HIDDEN})
    assert told == "other rows are taken: row [1] is row [1, 2] of hidden"
    assert other_rows(POOLED[::-1], POOLED, HONEST, {}) == (
        "other rows are taken: row [0] is row [1], row [1] is row [0] of its own"
    )


def test_right_rows_and_foreign_ones():
    assert not other_rows(HONEST, POOLED, HONEST, {"hidden": HIDDEN})
    assert not other_rows(HIDDEN[[0, 1], [4, 2]] * 1.01, POOLED, HONEST, {"hidden": HIDDEN})


def test_rows_before_a_product():
    weight = RNG.standard_normal((10, 24)).astype(np.float32)
    call = Call("linear", {"x": stored(POOLED.astype(np.float32)), "weight": stored(weight)}, {})
    found = HIDDEN[[0, 1], [4, 2]] @ weight.T.astype(np.float64)
    ((name, y),) = rows_of_taps(call, found, {"other": HIDDEN[..., :8], "hidden": HIDDEN})
    assert name == "x is read from rows [0, 4], [1, 2] of hidden"
    np.testing.assert_allclose(y, found, rtol=1e-4, atol=1e-4)
    assert not list(rows_of_taps(call, found + 0.1, {"hidden": HIDDEN}))
