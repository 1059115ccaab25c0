"""Known bugs of rotation adapters (OFT, BOFT): in building them from a file's blocks, and in applying them.

Each function maps (rotation, its parts in the file, weight, strength) to the delta of the weight.
"""

from collections.abc import Callable, Mapping

import numpy as np

from refsd.kernels.adapters import OutputRotation
from refsd.kernels.adapters.oft import transposed
from refsd.kernels.adapters.rotation import skew
from refsd.stages.stage import NoDifference

Parts = Mapping[str, np.ndarray]
Change = Callable[[OutputRotation, Parts, np.ndarray, float], np.ndarray]


def _of_inputs(oft: OutputRotation, parts: Parts, weight: np.ndarray, strength: float) -> np.ndarray:
    if weight.ndim != 2 or weight.shape[0] != weight.shape[1]:
        raise NoDifference
    return oft.delta(weight.T, strength).T


def _rescaled_columns(oft: OutputRotation, parts: Parts, weight: np.ndarray, strength: float) -> np.ndarray:
    if oft.gain is None or weight.shape[0] != weight.shape[1]:
        raise NoDifference
    turned = weight + oft._replace(gain=None).delta(weight, 1.0)
    return strength * (turned * oft.gain - weight)


def _staged(change: Callable[[tuple], tuple]) -> Change:
    return lambda oft, parts, weight, strength: oft._replace(stages=change(oft.stages)).delta(weight, strength)


def _made(change: Callable[[np.ndarray], np.ndarray]) -> Change:
    """change: a file's blocks [n, b, b] -> matrices used instead of the rotations"""

    def wrong(oft: OutputRotation, parts: Parts, weight: np.ndarray, strength: float) -> np.ndarray:
        blocks = parts["oft_blocks"]
        if blocks.ndim != 3:
            raise NoDifference
        (stage,) = oft.stages
        return oft._replace(stages=(stage._replace(blocks=change(blocks)),)).delta(weight, strength)

    return wrong


def _cayley(q: np.ndarray) -> np.ndarray:
    """The Cayley transform of any matrix, skew or not."""
    one = np.eye(q.shape[-1], dtype=q.dtype)
    return (one + q) @ np.linalg.inv(one - q)


def _scaled_by_alpha(oft: OutputRotation, parts: Parts, weight: np.ndarray, strength: float) -> np.ndarray:
    """alpha / block size acts as a strength, as in a LoRA, not as a limit."""
    if "alpha" not in parts:
        raise NoDifference
    share = strength * float(parts["alpha"]) / parts["oft_blocks"].shape[-1]
    return _made(lambda blocks: _cayley(skew(blocks)))(oft, parts, weight, share)


# Name of the bug -> the bug.
ROTATIONS: Mapping[str, Change] = {
    "rescale left out": lambda oft, parts, weight, strength: oft._replace(gain=None).delta(weight, strength),
    "rescale along the columns": _rescaled_columns,
    "a rotation of the inputs, not of the outputs": _of_inputs,
    "a rotation the other way": _staged(transposed),
    "a rotation without the blocks' order": _staged(lambda all_: tuple(s._replace(order=None) for s in all_)),
    "a rotation whose stages are in reverse": _staged(lambda stages: stages[::-1]),
    "a rotation of its first stage alone": _staged(lambda stages: stages[:1]),
    "a rotation's blocks are not made skew": _made(_cayley),
    "a rotation's blocks are made skew by half": _made(lambda blocks: _cayley(skew(blocks) / 2)),
    "a rotation to first order, I + 2 Q": _made(lambda blocks: np.eye(blocks.shape[-1]) + 2 * skew(blocks)),
    "a rotation's blocks are the rotations themselves, without Cayley's transform": _made(lambda blocks: blocks),
    "a rotation by I + Q, without Cayley's transform": _made(
        lambda blocks: np.eye(blocks.shape[-1]) + skew(blocks)
    ),
    "a rotation's alpha is a scale, not a limit": _scaled_by_alpha,
}
