"""What engines get wrong in weights of few bits with a scale for each block of a row, NVFP4's and MX's."""

import numpy as np

from refsd.golden.mutations import other_input
from refsd.golden.operation import Inputs, Mutant, Wrong


def codes_of_pairs(inputs: Inputs, upper_first: bool) -> np.ndarray:
    """Return the codes of 4 bits, two a byte. upper_first: the first is the byte's upper half -> uint8 [O, K]"""
    packed = inputs["weight"].values().astype(np.uint8)
    halves = (packed >> 4, packed & 0xF)
    return np.stack(halves if upper_first else halves[::-1], axis=-1).reshape(len(packed), -1)


def scaled_blocks(values: np.ndarray, scales: np.ndarray, group: int) -> np.ndarray:
    """Multiply [O, K] by scales [O, K / group]."""
    return values * np.repeat(scales, group, axis=1)


def _lying_in_fours(scales: np.ndarray) -> np.ndarray | None:
    """Rows of scales are padded with 1 to whole fours where they are written, and not where they are read."""
    more = -scales.shape[1] % 4
    padded = np.pad(scales, ((0, 0), (0, more)), constant_values=1)
    return padded.ravel()[: scales.size].reshape(scales.shape) if more else None


def _read_in_fours(scales: np.ndarray) -> np.ndarray | None:
    """The reverse. Behind the last row lies 1."""
    rows, n = scales.shape
    memory = np.pad(scales.ravel(), (0, rows * (-n % 4)), constant_values=1)
    return memory.reshape(rows, -1)[:, :n] if n % 4 else None


def _in_tiles(scales: np.ndarray) -> np.ndarray:
    """Rows of scales in the order that tensor cores read (kernels/quant/grouped.py), taken for rows."""
    rows, n = scales.shape
    padded = np.pad(scales, ((0, -rows % 128), (0, -n % 4)))
    tiles = padded.reshape(len(padded) // 128, 4, 32, -1, 4).transpose(0, 3, 2, 1, 4)
    return tiles.ravel()[: scales.size].reshape(scales.shape)


def _next_block(scales: np.ndarray) -> np.ndarray | None:
    return np.roll(scales, -1, axis=1) if scales.shape[1] > 1 else None


def transposed(scales: np.ndarray) -> np.ndarray | None:
    """Read [O, n] as its transpose; None where that is the same."""
    return np.ascontiguousarray(scales.reshape(scales.shape[::-1]).T) if 1 not in scales.shape else None


def swapped(packed: np.ndarray) -> np.ndarray:
    """Return bytes with their halves exchanged."""
    return packed << 4 | packed >> 4


def scale_mutants(one: float) -> tuple[Mutant[Wrong], ...]:
    """Return the known bugs of the input "block_scale" [O, n]. one: how it holds a scale of 1"""
    changes = {
        "weight's scales of the next block": _next_block,
        "weight's scales of blocks transposed": transposed,
        "weight's scales of blocks missing": lambda scales: np.full_like(scales, one),
        "weight's scales are read in rows of whole fours": _read_in_fours,
        "weight's scales lie in rows of whole fours": _lying_in_fours,
        "weight's scales in the tiles of tensor cores, read as rows": _in_tiles,
    }
    return tuple(Mutant(name, other_input("block_scale", change)) for name, change in changes.items())
