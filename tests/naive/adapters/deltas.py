"""Every adapter's delta from its paper: np.kron, block matrices, loops over elements."""

import numpy as np


def lora(down, up, mid, scale):
    """The sum over ranks, one outer product at a time."""
    if mid is None:
        return scale * sum(np.multiply.outer(up[:, k], down[k]) for k in range(len(down)))
    return scale * np.einsum("ok,klrs,li->oirs", up, mid, down)


def loha(w1_a, w1_b, w2_a, w2_b, t1, t2, shape, scale):
    """Of rank K^2: the Khatri-Rao form, one outer product for each pair of ranks."""
    if t1 is not None:
        halves = [np.einsum("klrs,ko,li->oirs", t, a, b) for t, a, b in ((t1, w1_a, w1_b), (t2, w2_a, w2_b))]
        return scale * halves[0] * halves[1]
    delta = sum(
        np.multiply.outer(w1_a[:, j] * w2_a[:, k], w1_b[j] * w2_b[k])
        for j in range(len(w1_b))
        for k in range(len(w2_b))
    )
    return scale * delta.reshape(shape)


def lokr(w1, w2, scale):
    """np.kron at each tap of the filter. w1: [O1, I1]; w2: [O2, I2] or [O2, I2, R, S]"""
    if w2.ndim == 2:
        return scale * np.kron(w1, w2)
    _, _, R, S = w2.shape
    taps = [[np.kron(w1, w2[:, :, r, s]) for s in range(S)] for r in range(R)]
    return scale * np.moveaxis(np.array(taps), (0, 1), (2, 3))


def dora(weight, delta, magnitude, on_input):
    """Row by row, or column by column."""
    merged = weight + delta
    out = np.empty_like(merged)
    for c in range(len(magnitude)):
        which = (slice(None), c) if on_input else (c,)
        out[which] = magnitude[c] * merged[which] / np.linalg.norm(merged[which].ravel())
    return out - weight


def glora(weight, a1, a2, b1, b2, scale):
    """weight A + B with A and B as matrices, at each tap."""
    taps = weight.reshape(*weight.shape[:2], -1)
    through = np.stack([taps[:, :, t] @ (a1 @ a2) for t in range(taps.shape[2])], axis=-1)
    return scale * (through.reshape(weight.shape) + np.tensordot(b1, b2, 1))


def ia3(weight, gain, on_input):
    """A diagonal matrix on one side or the other."""
    taps = weight.reshape(*weight.shape[:2], -1)
    scaled = [
        taps[:, :, t] @ np.diag(gain) if on_input else np.diag(gain) @ taps[:, :, t] for t in range(taps.shape[2])
    ]
    return np.stack(scaled, axis=-1).reshape(weight.shape) - weight


def rotation(q):
    """(I + Q) (I - Q)^-1 with an explicit inverse. q: [b, b], skew"""
    one = np.eye(len(q))
    return (one + q) @ np.linalg.inv(one - q)


def block_diagonal(blocks):
    size = sum(len(b) for b in blocks)
    matrix, at = np.zeros((size, size)), 0
    for b in blocks:
        matrix[at : at + len(b), at : at + len(b)] = b
        at += len(b)
    return matrix


def oft(blocks):
    """LyCORIS's matrix on the rows: the transposed rotations. blocks: [n, b, b] -> [O, O]"""
    return block_diagonal([rotation(b - b.T).T for b in blocks])


def boft(blocks):
    """LyCORIS's product of butterflies on the rows. blocks: [m, n, b, b] -> [O, O]

    Stage m rotates channels whose indices differ only in one bit, of weight 2^m b/2, and below b/2.
    """
    channels, b = blocks.shape[1] * blocks.shape[2], blocks.shape[2]
    total = np.eye(channels)
    for m, stage in enumerate(blocks):
        distance = 2**m * (b // 2)
        order = sorted(range(channels), key=lambda i: (i // (2 * distance), i % distance, i // distance % 2))
        shuffle = np.eye(channels)[order]
        total = shuffle.T @ block_diagonal([rotation(s - s.T) for s in stage]) @ shuffle @ total
    return total


def boft_inputs(blocks):
    """PEFT's M, of x M. blocks: [m, n, b, b] -> [I, I]

    Stage m: in each group of 2^m b channels, the even chunks of b/2 come first; blocks (I - Q) (I + Q)^-1.
    """
    channels, b = blocks.shape[1] * blocks.shape[2], blocks.shape[2]
    total = np.eye(channels)
    for m, stage in enumerate(blocks):
        group, half = 2**m * b, b // 2
        order = (
            sorted(range(channels), key=lambda i: (i // group, i // half % 2, i))
            if len(blocks) > 1
            else range(channels)
        )
        shuffle = np.eye(channels)[list(order)]
        total = shuffle @ block_diagonal([rotation(-(s - s.T) / 2) for s in stage]) @ shuffle.T @ total
    return total
