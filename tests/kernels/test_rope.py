"""Rotary embedding against complex multiplication."""

import numpy as np
from naive.rope import apply_rope as naive

from refsd.kernels.rope import apply_rope, rope_angles


def test_angles_by_hand():
    ids = np.array([[[3, 5], [0, 1]]])
    angle = rope_angles(ids, (4, 2), 100.0)
    np.testing.assert_allclose(angle, [[[3, 3 * 0.1, 5], [0, 0, 1]]], rtol=1e-15)


def test_turning_is_complex_multiplication():
    rng = np.random.default_rng(0)
    x, angle = rng.standard_normal((2, 33, 3, 8)), rng.uniform(0, 100, (2, 33, 4))
    np.testing.assert_allclose(apply_rope(x, angle), naive(x, angle), atol=1e-14)
    assert apply_rope(x.astype(np.float32), angle).dtype == np.float32


def test_scores_depend_on_distance_alone():
    rng = np.random.default_rng(1)
    q, k = rng.standard_normal((2, 1, 1, 1, 8))

    def score(at, other):
        turned = [apply_rope(t, rope_angles([[[p]]], (8,), 1e4)) for t, p in ((q, at), (k, other))]
        return np.vdot(*turned)

    np.testing.assert_allclose(score(3, 10), score(53, 60), rtol=1e-12)
