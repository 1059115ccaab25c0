"""Rotations from free parameters, by Cayley's transform."""

import numpy as np


def skew(blocks):
    """Q = B - B^T. blocks: [..., b, b]. LyCORIS's and kohya's; PEFT's BOFT takes half of it."""
    return blocks - np.swapaxes(blocks, -1, -2)


def skew_from_upper(values, size):
    """The skew matrix whose upper triangle, row by row, is `values`: PEFT's OFT.

    values: [n, size (size - 1) / 2] -> [n, size, size]
    """
    q = np.zeros((len(values), size, size), values.dtype)
    rows, columns = np.triu_indices(size, 1)
    q[:, rows, columns] = values
    return skew(q)


def limited(q, limit):
    """Q shrunk to the Frobenius norm `limit`, all blocks together, if it is longer. limit 0: as it is.

    LyCORIS: limit = alpha O; ComfyUI: alpha. The norm has 1e-8 added to it.
    """
    norm = np.sqrt(np.sum(np.square(q))) + 1e-8
    return q * (limit / norm) if limit > 0 and norm > limit else q


def clamped(q, limit):
    """The same as kohya and A1111 have it: both norms have 1e-8 added to them."""
    norm = np.sqrt(np.sum(np.square(q)))
    return q * ((min(norm, limit) + 1e-8) / (norm + 1e-8)) if limit != 0 else q


def limited_each(q, limit):
    """Each block shrunk to the Frobenius norm limit / sqrt(n), if it is longer: PEFT's coft, its limit eps.

    q: [n, b, b] -> the same shape. Source: PEFT tuners/oft/layer.py, _project_batch.
    """
    limit = limit / np.sqrt(len(q))
    norm = np.sqrt(np.sum(np.square(q), axis=(1, 2), keepdims=True))
    return np.where(norm <= limit, q, q * (limit / np.where(norm == 0, 1, norm)))


def cayley(q):
    """R = (I + Q) (I - Q)^-1, a rotation. q: [..., b, b], skew -> the same shape

    Source: Qiu et al. 2023 (OFT), section 3.3; LyCORIS diag_oft.py, get_r.
    """
    one = np.eye(q.shape[-1], dtype=q.dtype)
    # R (I - Q) = I + Q, and (I - Q)^T = I + Q: R^T = (I + Q)^-1 (I - Q).
    return np.swapaxes(np.linalg.solve(one + q, one - q), -1, -2)


def cayley_inverse(q):
    """R = (I - Q) (I + Q)^-1, the inverse of cayley(q): PEFT's sign. Source: PEFT tuners/oft/layer.py."""
    return cayley(-q)


def cayley_neumann(q, terms=5):
    """PEFT's default for OFT: the inverse as the first terms of its series, so that R is nearly a rotation.

        R = I + 2 Q + 2 Q^2 + ... + 2 Q^(n - 2) + Q^(n - 1)       n = terms; 3 counts as 4; for 2: I + 2 Q

    Its sign is cayley's, where the exact transform of the same class has the other one.

    q: [..., b, b] -> the same shape
    Source: Qiu et al. 2025 (OFTv2), section 3.2; PEFT tuners/oft/layer.py, _cayley_batch.
    """
    one = np.eye(q.shape[-1], dtype=q.dtype)
    if terms <= 2:
        return one + 2 * (terms - 1) * q
    last = max(terms - 1, 3)
    r, power = one + np.zeros_like(q), one
    for n in range(1, last + 1):
        power = power @ q
        r += power if n == last else 2 * power
    return r
