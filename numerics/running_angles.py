"""RoPE angles by their precision; as ggml computes them only to reproduce that deviation."""

from collections.abc import Callable

import numpy as np

from refsd.kernels.rope import rope_angles, rope_angles_float32


def rope_angles_running(ids, axes_dim, theta):
    """Compute the angles of `rope_angles` as a running product in float32.

        angle_0 = ids,  angle_i = angle_(i-1) * theta^(-2 / dim)

    ids:      [N, L, A]
    axes_dim: channels given to each axis, all even
    -> angle: [N, L, sum(axes_dim) / 2], float32 numbers in float64

    Error: measured 5e-5 at position 511, with theta 1e6 and 128 channels.
    Source: ggml ggml-cpu/ops.cpp, ggml_rope_cache_init.
    """
    ids = np.asarray(ids, np.float32)
    parts = []
    for a, dim in enumerate(axes_dim):
        angle, factor = ids[..., a], np.float32(theta) ** np.float32(-2 / dim)
        for _ in range(dim // 2):
            parts.append(angle)
            angle = angle * factor
    return np.stack(parts, axis=-1).astype(np.float64)


# precision, as a deviation names it -> ids, axes_dim, theta -> angles
ANGLES: dict[str, Callable[..., np.ndarray]] = {
    "float64": rope_angles,
    "float32": rope_angles_float32,
    "float32, running": rope_angles_running,
}
