"""An answer of another shape is described where its slices are the right ones, and not where they are others."""

import numpy as np
import pytest

from refsd.causes.generic.other_shapes import other_shape

RNG = np.random.default_rng(3)
TRUTH = RNG.standard_normal((2, 3, 8, 6)).astype(np.float32)


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (TRUTH[:, :, ::2], "of axis 2, 8 long, one in 2 is there"),
        (TRUTH[:, :, ::2, ::2], "of axis 2, 8 long, one in 2 is there and of axis 3, 6 long, one in 2 is there"),
        (TRUTH[:1], "of axis 0, 2 long, the first 1 alone are there"),
        (TRUTH.repeat(2, 3), "of axis 3, 6 long, each stands there 2 times"),
        (np.concatenate([TRUTH, TRUTH]), "of axis 0, 2 long, all stand there 2 times, one after the other"),
        (TRUTH[:, :, [0, 0, 0, 0, *range(1, 8)]], "of axis 2, 8 long, the first stands there 4 times"),
        (np.insert(TRUTH, [8, 8, 8], 7.0, 2), "of axis 2, 8 long, 3 more lie behind the right ones"),
        (np.insert(TRUTH, 0, 7.0, 3), "of axis 3, 6 long, 1 more lies in front of the right ones"),
        (TRUTH, ""),
        (TRUTH[0], ""),
        (RNG.standard_normal((2, 3, 4, 6)), ""),
    ],
)
def test_slices_are_told(found, says):
    assert other_shape(np.asarray(found), TRUTH) == says


def test_slices_of_one_constant_tell_nothing():
    assert not other_shape(np.zeros((3, 6)), np.zeros((3, 2)))
