"""The sinusoidal embedding of a timestep."""

import numpy as np


def timestep_embedding(t, dim, max_period=10000.0, freq_shift=0.0, scale=1.0):
    """Encode a timestep as cosines and sines of geometrically spaced frequencies.

        f_j = max_period^(-j / (half - freq_shift)),  half = dim // 2
        y   = [cos(scale t f_0) ... cos(scale t f_{half-1}), sin(scale t f_0) ..., 0 if dim is odd]

    t:    [N], 0..1000
    -> y: [N, dim], dtype of t

    Frequencies and angles are rounded to the dtype of t, as engines do: in float32 an angle near
    1000 radians is known to 6e-5.
    Source: Vaswani et al. 2017, section 3.5; CompVis latent-diffusion, util.py, timestep_embedding; diffusers
    get_timestep_embedding(flip_sin_to_cos=True), whose downscale_freq_shift is freq_shift.
    """
    cos, sin, odd = _waves(t, dim, max_period, freq_shift, scale)
    return np.concatenate([cos, sin, odd], axis=1)


def timestep_embedding_sin_first(t, dim, max_period=10000.0, freq_shift=0.0, scale=1.0):
    """Compute `timestep_embedding` with the sines before the cosines.

    t:    [N]
    -> y: [N, dim], dtype of t

    Source: Ho et al. 2020, nn.py, get_timestep_embedding, which has freq_shift 1; diffusers' default.
    """
    cos, sin, odd = _waves(t, dim, max_period, freq_shift, scale)
    return np.concatenate([sin, cos, odd], axis=1)


def _waves(t, dim, max_period, freq_shift, scale):
    half = dim // 2
    exponents = t.dtype.type(-np.log(max_period)) * np.arange(half, dtype=t.dtype)
    freqs = np.exp(exponents / t.dtype.type(half - freq_shift))
    angles = t.dtype.type(scale) * (t[:, None] * freqs)
    return np.cos(angles), np.sin(angles), np.zeros((t.shape[0], dim % 2), t.dtype)
