"""A token is a patch, cut out and laid flat."""

import numpy as np


def patches(x, p):
    """[N, C, H, W] -> [N, H/p * W/p, C, p, p]"""
    H, W = x.shape[2:]
    return np.stack([x[:, :, h : h + p, w : w + p] for h in range(0, H, p) for w in range(0, W, p)], axis=1)


def patchify(x, p):
    y = patches(x, p)
    return y.reshape(*y.shape[:2], -1)


def patchify_channels_last(x, p):
    y = np.moveaxis(patches(x, p), 2, 4)
    return y.reshape(*y.shape[:2], -1)
