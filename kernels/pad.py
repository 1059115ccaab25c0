"""Add borders to a picture. padding is (top, bottom, left, right)."""

import numpy as np


def pad_zero(x, padding):
    """Pad with zeros.

    x:    [N, C, H, W]
    -> y: [N, C, top + H + bottom, left + W + right], dtype of x

    Source: torch.nn.functional.pad(mode="constant"); ggml_pad_ext.
    """
    top, bottom, left, right = padding
    return np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))


def pad_replicate(x, padding):
    """Pad with the nearest pixel: y[h, w] = x[clip(h - top, 0, H - 1), clip(w - left, 0, W - 1)].

    x:    [N, C, H, W]
    -> y: [N, C, top + H + bottom, left + W + right], dtype of x

    Source: torch.nn.functional.pad(mode="replicate").
    """
    H, W = x.shape[2:]
    rows, columns = _outside(H, W, padding)
    return _taken(x, np.clip(rows, 0, H - 1), np.clip(columns, 0, W - 1))


def pad_reflect(x, padding):
    """Pad with the picture mirrored at its outermost pixel, which is not repeated.

    The border must be narrower than the picture.

    x:    [N, C, H, W]
    -> y: [N, C, top + H + bottom, left + W + right], dtype of x

    Source: torch.nn.functional.pad(mode="reflect"); ggml_pad_reflect_1d.
    """
    H, W = x.shape[2:]
    rows, columns = _outside(H, W, padding)
    return _taken(x, H - 1 - np.abs(H - 1 - np.abs(rows)), W - 1 - np.abs(W - 1 - np.abs(columns)))


def pad_circular(x, padding):
    """Pad with pixels from the opposite side: y[h, w] = x[(h - top) mod H, (w - left) mod W].

    x:    [N, C, H, W]
    -> y: [N, C, top + H + bottom, left + W + right], dtype of x

    A convolution of the padded picture treats it as periodic, so that its result can be tiled.
    Source: torch.nn.functional.pad(mode="circular"); ggml_pad_ext_circular.
    """
    H, W = x.shape[2:]
    rows, columns = _outside(H, W, padding)
    return _taken(x, rows % H, columns % W)


def roll(x, down, right):
    """Shift the picture cyclically.

        y[h, w] = x[(h - down) mod H, (w - right) mod W]

    x:    [N, C, H, W]
    -> y: [N, C, H, W], dtype of x

    Source: torch.roll; ggml_roll.
    """
    H, W = x.shape[2:]
    return _taken(x, (np.arange(H) - down) % H, (np.arange(W) - right) % W)


def _outside(H, W, padding):
    top, bottom, left, right = padding
    return np.arange(-top, H + bottom), np.arange(-left, W + right)


def _taken(x, rows, columns):
    return x[:, :, rows[:, None], columns]
