"""Plain packing in float64: a scale from the largest element, every element to the nearest code, nothing searched.

What a quantizer that searches must beat or equal in its own measure of error.
"""

import numpy as np

# type -> elements under one scale, the values of the codes, whether a minimum is taken off
SIMPLE = {
    "q4_0": (32, np.arange(-8, 8), False),
    "q5_0": (32, np.arange(-16, 16), False),
    "q3_k": (16, np.arange(-4, 4), False),
    "q6_k": (16, np.arange(-32, 32), False),
    "q4_1": (32, np.arange(16), True),
    "q5_1": (32, np.arange(32), True),
    "q2_k": (16, np.arange(4), True),
    "q4_k": (32, np.arange(16), True),
    "q5_k": (32, np.arange(32), True),
    "iq4_nl": (32, np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]), False),
    "iq4_xs": (32, np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]), False),
}


def rounded(name, x):
    """x as plain packing gives it back. [n, k] -> float64 [n, k]"""
    size, values, has_minimum = SIMPLE[name]
    groups = np.asarray(x, np.float64).reshape(-1, size)
    low = groups.min(axis=1, keepdims=True) if has_minimum else 0.0
    shifted = groups - low
    first = np.take_along_axis(shifted, abs(shifted).argmax(axis=1)[:, None], axis=1)
    scale = first / (values[-1] if has_minimum else values[0])
    scale[scale == 0] = 1
    codes = abs(shifted[:, :, None] / scale[:, :, None] - values).argmin(axis=2)
    return (values[codes] * scale + low).reshape(np.shape(x))


def on_grid(x, size, rows, even, scale_of):
    """Magnitudes as the nearest rows of a grid, looked for among all, under a scale for each `size` elements.

    rows: [rows, width], signed where they are ternary; even: signs in eights, the minuses made even by turning the
    smallest element; scale_of: groups -> scales
    """
    groups = np.asarray(x, np.float64).reshape(-1, size)
    signs = np.where(groups < 0, -1.0, 1.0) if rows.min() > 0 else np.ones_like(groups)
    if even:
        eights, smallest = signs.reshape(-1, 8), abs(groups).reshape(-1, 8).argmin(axis=1)
        eights[np.arange(len(eights)), smallest] *= eights.prod(axis=1)
    scale = np.repeat(scale_of(groups), size // rows.shape[1])[:, None]
    parts = (groups * signs).reshape(-1, rows.shape[1])
    distance = (rows**2.0).sum(axis=1) * scale**2 - 2 * scale * (parts @ rows.T)
    return (rows[distance.argmin(axis=1)] * scale * signs.reshape(parts.shape)).reshape(np.shape(x))


def tq(x):
    """Ternary by the largest magnitude. [n, k] -> float64 [n, k]"""
    largest = abs(np.asarray(x, np.float64)).max(axis=1, keepdims=True)
    return np.where(abs(x) >= largest / 2, np.sign(x) * largest, 0)


def one_bit(x):
    """The sign times the mean magnitude. [n, k] -> float64 [n, k]"""
    return np.where(np.asarray(x, np.float64) >= 0, 1, -1) * abs(np.asarray(x, np.float64)).mean(
        axis=1, keepdims=True
    )


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def microscaled(x, size, scale_of):
    """4-bit floats under a scale for each `size` elements. scale_of: largest magnitudes -> scales"""
    groups = np.asarray(x, np.float64).reshape(-1, size)
    scale = scale_of(abs(groups).max(axis=1))[:, None]
    codes = abs(abs(groups)[:, :, None] - scale[:, :, None] * E2M1).argmin(axis=2)
    return (np.copysign(E2M1[codes], groups) * scale).reshape(np.shape(x))


def mxfp4(x):
    return microscaled(x, 32, lambda largest: 2.0 ** (np.floor(np.log2(largest)) - 2))


def nvfp4(x):
    exponents, mantissas = np.meshgrid(np.arange(-6, 9), 1 + np.arange(8) / 8, indexing="ij")
    table = np.sort(np.concatenate([[0], np.arange(1, 8) / 8 * 2.0**-6, (2.0**exponents * mantissas).ravel()]))
    table = table[table <= 448]
    return microscaled(x, 16, lambda largest: table[abs(largest[:, None] / 6 - table).argmin(axis=1)])
