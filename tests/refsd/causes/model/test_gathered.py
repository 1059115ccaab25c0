"""Rows of a wrong tap that are rows of another tensor are found there; other rows are not."""

import numpy as np

from refsd.causes.model.gathered import other_rows

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
