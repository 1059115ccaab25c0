"""Compute rotations from free parameters by the Cayley transform."""

import numpy as np


def skew(blocks):
    """Compute Q = B - B^T, as LyCORIS and kohya do; PEFT's BOFT uses half of it. blocks: [..., b, b]"""
    return blocks - np.swapaxes(blocks, -1, -2)


def skew_from_upper(values, size):
    """Make the skew matrix whose upper triangle, row by row, is `values`, as PEFT's OFT does.

    values: [n, size (size - 1) / 2] -> [n, size, size]
    """
    q = np.zeros((len(values), size, size), values.dtype)
    rows, columns = np.triu_indices(size, 1)
    q[:, rows, columns] = values
    return skew(q)


def limited(q, limit):
    """Shrink Q if the Frobenius norm of all blocks together exceeds `limit`; 0 means no limit.

    LyCORIS: limit = alpha O; ComfyUI: alpha. The norm has 1e-8 added to it.
    """
    norm = np.sqrt(np.sum(np.square(q))) + 1e-8
    return q * (limit / norm) if limit > 0 and norm > limit else q


def clamped(q, limit):
    """Shrink Q like `limited`, but as kohya and A1111 do: 1e-8 is added to both norms."""
    norm = np.sqrt(np.sum(np.square(q)))
    return q * ((min(norm, limit) + 1e-8) / (norm + 1e-8)) if limit != 0 else q


def limited_each(q, limit):
    """Shrink each block whose Frobenius norm exceeds limit / sqrt(n): PEFT's coft, whose eps is the limit.

    q: [n, b, b] -> the same shape. Source: PEFT tuners/oft/layer.py, _project_batch.
    """
    limit = limit / np.sqrt(len(q))
    norm = np.sqrt(np.sum(np.square(q), axis=(1, 2), keepdims=True))
    return np.where(norm <= limit, q, q * (limit / np.where(norm == 0, 1, norm)))


def cayley(q):
    """Compute the rotation R = (I + Q) (I - Q)^-1. q: [..., b, b], skew -> the same shape

    Source: Qiu et al. 2023 (OFT), section 3.3; LyCORIS diag_oft.py, get_r.
    """
    one = np.eye(q.shape[-1], dtype=q.dtype)
    # R (I - Q) = I + Q, and (I - Q)^T = I + Q: R^T = (I + Q)^-1 (I - Q).
    return np.swapaxes(np.linalg.solve(one + q, one - q), -1, -2)


def cayley_inverse(q):
    """Compute R = (I - Q) (I + Q)^-1, the inverse of cayley(q), for PEFT. Source: PEFT tuners/oft/layer.py."""
    return cayley(-q)


def cayley_neumann(q, terms=5):
    """Compute PEFT's default for OFT: the inverse is a truncated series, so that R is only nearly a rotation.

        R = I + 2 Q + 2 Q^2 + ... + 2 Q^(n - 2) + Q^(n - 1)       n = terms; 3 counts as 4; for 2: I + 2 Q

    Its sign is that of cayley, although the exact transform of the same PEFT class has the other sign.

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
