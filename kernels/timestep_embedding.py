"""The sinusoidal embedding of a timestep."""

import numpy as np


def timestep_embedding(t, dim, max_period=10000.0):
    """Spell a timestep as cosines and sines of geometrically spaced frequencies.

        f_j = max_period^(-j / half),  half = dim // 2
        y   = [cos(t f_0) ... cos(t f_{half-1}), sin(t f_0) ... sin(t f_{half-1}), 0 if dim is odd]

    t:    [N], 0..1000
    -> y: [N, dim], dtype of t

    Frequencies and angles are rounded to the dtype of t, as engines do: in float32 an angle near
    1000 radians is known to 6e-5.
    Source: Vaswani et al. 2017, section 3.5; CompVis latent-diffusion, util.py, timestep_embedding.
    """
    half = dim // 2
    freqs = np.exp(t.dtype.type(-np.log(max_period)) * np.arange(half, dtype=t.dtype) / half)
    angles = t[:, None] * freqs
    odd = np.zeros((t.shape[0], dim % 2), t.dtype)
    return np.concatenate([np.cos(angles), np.sin(angles), odd], axis=1)
