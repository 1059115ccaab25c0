"""Guidance, item by item and number by number."""

import statistics

import numpy as np


def cfg(cond, uncond, scale):
    return scale * cond - (scale - 1) * uncond


def pix2pix(cond, image, uncond, scale, image_scale):
    return scale * cond + (image_scale - scale) * image + (1 - image_scale) * uncond


def rescaled(cond, uncond, scale, phi):
    out = []
    for c, u in zip(cond, uncond, strict=True):
        g = cfg(c, u, scale)
        ratio = statistics.stdev(c.ravel().tolist()) / statistics.stdev(g.ravel().tolist())
        out.append(g * (phi * ratio + 1 - phi))
    return np.stack(out)


def apg(cond, uncond, scale, eta, most=0.0, momentum=0.0, average=None, smooth=0.0):
    out = []
    for i in range(len(cond)):
        c, d = cond[i].ravel(), (cond[i] - uncond[i]).ravel()
        if average is not None:
            d = d + momentum * average[i].ravel()
        if most:
            q = most / np.sqrt(d @ d)
            d = d * (min(1, q) if not smooth else q / (1 + q ** (1 / smooth)) ** smooth)
        along = (d @ c) / (c @ c) * c
        out.append((c + (scale - 1) * (d - (1 - eta) * along)).reshape(cond[i].shape))
    return np.stack(out)


def perpendicular(cond, negative, empty, scale, weight):
    out = []
    for c, n, e in zip(cond, negative, empty, strict=True):
        p, m = (c - e).ravel(), (n - e).ravel()
        across = m - (m @ p) / (p @ p) * p
        out.append((e.ravel() + scale * (p - weight * across)).reshape(c.shape))
    return np.stack(out)


def zero_star(cond, uncond, scale):
    out = []
    for c, u in zip(cond, uncond, strict=True):
        near = (c.ravel() @ u.ravel()) / (u.ravel() @ u.ravel()) * u
        out.append(scale * c + (1 - scale) * near)
    return np.stack(out)
