"""Interpolation by np.interp, and by a sum over every pixel of a picture whose border goes on."""

import numpy as np


def _axes(x, height, width, line, factors):
    down, across = factors or (height / x.shape[2], width / x.shape[3])
    x = np.apply_along_axis(line, 2, x, height, down)
    return np.apply_along_axis(line, 3, x, width, across)


def _centres(size, new, factor):
    return [(p + 0.5) / factor - 0.5 for p in range(new)]


def _corners(size, new, factor):
    return np.linspace(0, size - 1, new) if new > 1 else [0.0]


def _bilinear(places):
    return lambda line, new, factor: np.interp(places(len(line), new, factor), range(len(line)), line)


def _keys(t, a):
    t = abs(t)
    if t < 1:
        return (a + 2) * t**3 - (a + 3) * t**2 + 1
    return a * (t**3 - 5 * t**2 + 8 * t - 4) if t < 2 else 0.0


def _bicubic(places):
    def interpolated(line, new, factor):
        far = np.pad(line, 3, "edge")
        at = places(len(line), new, factor)
        return [sum(_keys(p - (i - 3), -0.75) * far[i] for i in range(len(far))) for p in at]

    return interpolated


def _widened(shape):
    def filtered(line, new, factor):
        y = []
        for at in _centres(len(line), new, factor):
            weight = [shape((at - i) * min(factor, 1)) for i in range(len(line))]
            y.append(np.dot(weight, line) / sum(weight))
        return y

    return filtered


_LINES = {
    "resize_bilinear": _bilinear(_centres),
    "resize_bilinear_corners": _bilinear(_corners),
    "resize_bicubic": _bicubic(_centres),
    "resize_bicubic_corners": _bicubic(_corners),
    "resize_bilinear_antialias": _widened(lambda t: max(1 - abs(t), 0)),
    "resize_bicubic_antialias": _widened(lambda t: _keys(t, -0.5)),
}


def resize(name, x, height, width, factors=None):
    """factors: (down, across); None: those of the sizes"""
    return _axes(x, height, width, _LINES[name], factors)
