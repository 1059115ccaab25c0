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


def zero_star_of_noise(x, cond, uncond, scale):
    out = []
    for a, c, u in zip(x, cond, uncond, strict=True):
        n, m = (a - c).ravel(), (a - u).ravel()
        out.append(scale * c + (1 - scale) * (n @ m) / (m @ m) * u)
    return np.stack(out)


def rescaled_velocities(x, sigma, cond, uncond, scale, phi):
    """v = (a noise - s data), of noise = (x - data) / sigma at a = 1 / sqrt(1 + sigma^2), s = sigma a."""
    a = (1 + sigma**2) ** -0.5
    v = [a * (x - data) / sigma - sigma * a * data for data in (cond, uncond)]
    guided = rescaled(*v, scale, phi)
    return a * (a * x) - sigma * a * guided


def of_pixels(guided, cond, factor):
    """factor: length of guided's channels, of cond's -> what multiplies the pixel"""
    out = np.empty_like(guided)
    for n, i, j in np.ndindex(guided.shape[0], *guided.shape[2:]):
        g, c = guided[n, :, i, j], cond[n, :, i, j]
        out[n, :, i, j] = factor(np.hypot.reduce(g), np.hypot.reduce(c)) * g
    return out


def tangential(cond, uncond, scale):
    out = []
    for c, u in zip(cond, uncond, strict=True):
        rows = np.stack([c.ravel(), u.ravel()])
        _, turn = np.linalg.eigh(rows @ rows.T)
        v = turn[:, 1] @ rows
        near = ((u.ravel() @ v) / (v @ v) * v).reshape(c.shape)
        out.append(scale * c + (1 - scale) * near)
    return np.stack(out)


def thresholded(guided, share, most):
    out = []
    for g in guided:
        sizes = sorted(abs(v) for v in g.ravel())
        at = share * (len(sizes) - 1)
        low = int(at)
        limit = sizes[low] + (at - low) * (sizes[min(low + 1, len(sizes) - 1)] - sizes[low])
        limit = min(max(limit, 1.0), most)
        out.append(np.vectorize(lambda v, limit=limit: max(-limit, min(limit, v)) / limit)(g))
    return np.stack(out)
