"""Block types: how GGUF packs weights into blocks, a file each. This table is all that callers need."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class BlockType(NamedTuple):
    """
    ggml_id:    the type's number in a GGUF file
    block:      elements in a block
    bytes:      bytes in a block
    dequantize: uint8 [n, bytes] -> float32 [n, block]
    quantize:   float32 [n, block] -> uint8 [n, bytes]; None where refsd cannot
    """

    name: str
    ggml_id: int
    block: int
    bytes: int
    dequantize: Callable[[np.ndarray], np.ndarray]
    quantize: Callable[[np.ndarray], np.ndarray] | None = None


BLOCK_TYPES: dict[str, BlockType] = {}
