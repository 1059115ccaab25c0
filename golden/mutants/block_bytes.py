"""Block types read wrongly: bugs of every operation that expands one."""

from collections.abc import Callable

import numpy as np

from refsd.golden.mutants.mutant import Mutant, Wrong, answer
from refsd.golden.recipe import SCALE_FIELDS
from refsd.golden.tensor import SCALAR_TYPES
from refsd.kernels.quant import BLOCK_TYPES


def other_blocks(name: str, change: Callable[[str, np.ndarray], np.ndarray | None]) -> Wrong:
    """The bytes [n, block bytes] of a block type's tensor replaced."""

    def wrong(op, inputs, params):
        tensor = inputs[name]
        if tensor.type in SCALAR_TYPES:
            return None
        blocks = tensor.data.reshape(-1, BLOCK_TYPES[tensor.type].bytes).copy()
        changed = change(tensor.type, blocks)
        if changed is None:
            return None
        return answer(op, {**inputs, name: tensor._replace(data=changed.reshape(-1))}, params)

    return wrong


def swapped_nibbles(type: str, blocks: np.ndarray) -> np.ndarray | None:
    quants = {"q4_0": 2, "q4_1": 4, "q5_0": 6, "q5_1": 8, "q4_k": 16, "q5_k": 48}.get(type)
    if quants is None:
        return None
    blocks[:, quants:] = blocks[:, quants:] << 4 | blocks[:, quants:] >> 4
    return blocks


def neighbours_scale(type: str, blocks: np.ndarray) -> np.ndarray:
    field = SCALE_FIELDS[type][0]
    size = {"f16": 2, "f16 in pieces": 8}.get(field.kind, 1)
    scale = blocks[:, field.offset : field.offset + size]
    scale[:] = np.roll(scale, 1, axis=0)
    return blocks


def added_min(type: str, blocks: np.ndarray) -> np.ndarray | None:
    """The sign of the second scale, which is that of the mins."""
    if len(SCALE_FIELDS[type]) != 2:
        return None
    blocks[:, SCALE_FIELDS[type][1].offset + 1] ^= 0x80
    return blocks


def missing_high_bits(type: str, blocks: np.ndarray) -> np.ndarray | None:
    at = {"q5_0": (2, 6), "q5_1": (4, 8), "q3_k": (0, 32), "q5_k": (16, 48), "q6_k": (128, 192)}.get(type)
    if at is None:
        return None
    blocks[:, slice(*at)] = 0
    return blocks


def unsigned(type: str, blocks: np.ndarray) -> np.ndarray | None:
    """int8 quants read without their sign."""
    if type != "q8_0":
        return None
    blocks[:, 2:] &= 0x7F
    return blocks


def packed_scales(type: str, blocks: np.ndarray) -> np.ndarray | None:
    """6-bit scales 4 to 7 without their two upper bits."""
    if type not in ("q4_k", "q5_k"):
        return None
    blocks[:, 4:12] &= 0x3F
    return blocks


def block_mutants(name: str) -> tuple[Mutant, ...]:
    return (
        Mutant("nibbles in the wrong order", other_blocks(name, swapped_nibbles)),
        Mutant("scale of the neighbouring block", other_blocks(name, neighbours_scale)),
        Mutant("min added, not subtracted", other_blocks(name, added_min)),
        Mutant("upper bits of the quants missing", other_blocks(name, missing_high_bits)),
        Mutant("quants without their sign", other_blocks(name, unsigned)),
        Mutant("upper bits of the packed scales missing", other_blocks(name, packed_scales)),
    )
