"""Sinusoidal position embeddings of a picture: SD3's table."""

import numpy as np


def sincos_positions(dim, rows, columns):
    """Encode each pixel's column, then its row, as sines and cosines of geometrically spaced frequencies.

        f_i = 10000^(-i / (dim / 4)),  i in [0, dim / 4)
        y[h W + w] = [sin(column_w f), cos(column_w f), sin(row_h f), cos(row_h f)]

    dim:     a multiple of 4
    rows:    [H], coordinates
    columns: [W]
    -> y:    [H*W, dim], float64

    The column comes first because np.meshgrid returns the fast axis first, and the models were trained with it.
    Source: He et al. 2022 (MAE) pos_embed.py, get_2d_sincos_pos_embed; Vaswani et al. 2017, section 3.5.
    """
    rows, columns = np.asarray(rows, np.float64), np.asarray(columns, np.float64)
    quarter = dim // 4
    f = 10000.0 ** (-np.arange(quarter) / quarter)
    y = np.empty((len(rows), len(columns), 4, quarter))
    angle = columns[:, None] * f
    y[:, :, 0], y[:, :, 1] = np.sin(angle), np.cos(angle)
    angle = (rows[:, None] * f)[:, None]
    y[:, :, 2], y[:, :, 3] = np.sin(angle), np.cos(angle)
    return y.reshape(-1, dim)


def crop_positions(table, height, width):
    """Crop the centre of a square table for a smaller picture.

        y[h W + w] = table[(top + h) size + left + w],  top = (size - height) // 2,  left = (size - width) // 2

    table: [size*size, D]
    -> y:  [height*width, D], dtype of table

    Raises ValueError if the picture is larger than the table.
    Source: diffusers embeddings.py, PatchEmbed.cropped_pos_embed; Stability-AI/sd3-ref mmdit.py.
    """
    size = round(len(table) ** 0.5)
    if max(height, width) > size:
        raise ValueError(f"{height} x {width} patches do not fit a table of {size} x {size}")
    top, left = (size - height) // 2, (size - width) // 2
    square = table.reshape(size, size, -1)[top : top + height, left : left + width]
    return np.ascontiguousarray(square).reshape(height * width, -1)
