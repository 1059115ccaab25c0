"""Rotary position embedding, several axes, interleaved pairs."""

import numpy as np


def rope_angles(ids, axes_dim, theta):
    """The angle by which each pair of a head's channels turns at each position.

        angle[n, l, pair] = ids[n, l, axis] * theta^(-2 i / axes_dim[axis])

    The pairs of axis 0 come first, then those of axis 1, ...; i counts the pairs within an axis.

    ids:      [N, L, A], positions along A axes
    axes_dim: channels given to each axis, all even
    -> angle: [N, L, sum(axes_dim) / 2], float64

    Source: Su et al. 2021, eq. 15; black-forest-labs/flux math.py, rope.
    """
    ids = np.asarray(ids, np.float64)
    return np.concatenate(
        [
            ids[..., a, None] * theta ** -(np.arange(0, dim, 2, dtype=np.float64) / dim)
            for a, dim in enumerate(axes_dim)
        ],
        axis=-1,
    )


def apply_rope(x, angle):
    """Turn each pair of neighbouring channels (2i, 2i+1) by its angle.

        [y_2i, y_2i+1] = [[cos, -sin], [sin, cos]] [x_2i, x_2i+1]

    x:     [N, L, H, D]
    angle: [N, L, D/2], radians
    -> y:  [N, L, H, D], dtype of x

    Source: Su et al. 2021, eq. 34; black-forest-labs/flux math.py, apply_rope.
    """
    cos = np.cos(angle)[:, :, None].astype(x.dtype)
    sin = np.sin(angle)[:, :, None].astype(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    y = np.empty_like(x)
    y[..., 0::2] = cos * even - sin * odd
    y[..., 1::2] = sin * even + cos * odd
    return y
