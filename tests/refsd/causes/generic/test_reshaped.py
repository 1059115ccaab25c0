"""Right numbers in the order of a wrong reshape are told by their axes; other numbers are not."""

import numpy as np
import pytest

from refsd.causes.generic.reshaped import _same_numbers, reshaped
from refsd.golden.evidence import Evidence

RNG = np.random.default_rng(11)
TRUTH = RNG.standard_normal((2, 24, 10))
HONEST = TRUTH * (1 + 2.0**-24 * RNG.standard_normal(TRUTH.shape))


def _evidence(found):
    return Evidence(np.reshape(found, TRUTH.shape), TRUTH, HONEST)


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (
            HONEST.reshape(2, 3, 8, 10).swapaxes(1, 2),
            "it is stored as [axis 0, axis 1's 8 inner, axis 1's 3 outer, axis 2]",
        ),
        (
            HONEST.reshape(2, 4, 6, 10).transpose(0, 1, 3, 2),
            "axis 1's 4 outer, axis 2, axis 1's 6 inner",
        ),
        (
            HONEST.reshape(2, 24, 2, 5).transpose(0, 2, 1, 3).reshape(2, 10, 24).swapaxes(1, 2),
            "and read with axes 1 and 2 exchanged",
        ),
    ],
)
def test_the_order_is_told(found, says):
    told = reshaped(_evidence(np.ascontiguousarray(found)))
    assert told is not None and says in told[0]
    np.testing.assert_allclose(told[1].ravel(), np.ravel(found), rtol=1e-6)


def test_other_numbers_have_no_order():
    shuffled = RNG.permutation(HONEST.ravel())
    assert reshaped(_evidence(shuffled)) is None
    assert reshaped(_evidence(HONEST)) is None
    assert reshaped(_evidence(RNG.standard_normal(TRUTH.shape))) is None


def test_numbers_that_no_order_brings_near_are_told_without_a_search():
    """A sorted copy is near where any order is: an order leaves it true, other numbers do not."""
    noisy = HONEST + 2.0**-24 * RNG.standard_normal(TRUTH.shape)
    assert _same_numbers(_evidence(RNG.permutation(noisy.ravel())))
    assert not _same_numbers(_evidence(HONEST.astype(np.float16).astype(np.float64)))
    one = HONEST.copy()
    one.flat[7] += 0.01
    assert not _same_numbers(_evidence(RNG.permutation(one.ravel())))
