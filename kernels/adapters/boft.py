"""BOFT: several block-diagonal rotations in sequence, with channels permuted between them as in an FFT."""

import numpy as np

from refsd.kernels.adapters.oft import Stage
from refsd.kernels.adapters.rotation import cayley, cayley_inverse, skew


def wings(channels, distance):
    """Return the permutation that pairs channels `distance` apart: (c, 2, distance) -> (c, distance, 2).

    -> [channels] indices
    """
    return np.arange(channels).reshape(-1, 2, distance).swapaxes(1, 2).ravel()


def butterfly(q) -> tuple[Stage, ...]:
    """Return LyCORIS's stages for OutputRotation: stage m mixes channels that are 2^m b/2 apart.

    q: [m, n, b, b], skew

    Source: Liu et al. 2023 (BOFT), section 4; LyCORIS boft.py.
    """
    r = cayley(q)
    channels, half = q.shape[1] * q.shape[2], q.shape[2] // 2
    # LyCORIS multiplies a block with columns, a Stage multiplies rows with it.
    return tuple(Stage(np.swapaxes(r[m], -1, -2), wings(channels, 2**m * half)) for m in range(len(r)))


def butterfly_inputs(blocks) -> tuple[Stage, ...]:
    """Return PEFT's stages for InputRotation: x (M_{m-1} ... M_1 M_0), M_m = P_m blocks_m P_m^T.

    P_m permutes each group of 2^m b channels in chunks of b/2: even chunks first, then odd ones. A single stage has
    no permutation.

    blocks: [m, n, b, b], free parameters

    Source: PEFT tuners/boft/layer.py, cayley_batch (half the skew part, the inverse sign), block_butterfly_perm.
    """
    r = cayley_inverse(0.5 * skew(blocks))
    channels, b = blocks.shape[1] * blocks.shape[2], blocks.shape[2]
    stages = []
    for m in reversed(range(len(r))):
        order = None if len(r) == 1 else np.argsort(_even_then_odd(channels, 2**m * b, b // 2))
        stages.append(Stage(r[m], order))
    return tuple(stages)


def _even_then_odd(channels, group, chunk):
    """Return the permutation that puts each group's even chunks before its odd ones."""
    order = np.arange(channels).reshape(-1, group // chunk, chunk)
    return np.concatenate([order[:, ::2], order[:, 1::2]], axis=1).ravel()
