"""Blocks whose float16 scales are read as numbers of another type with the same bits."""

from collections.abc import Callable, Iterator

import ml_dtypes
import numpy as np

from refsd.causes.operation.block_parts import parts_of
from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics.tensor import StoredTensor

# How sixteen bits are read -> their values.
_READ: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "the number that its bits count": lambda bits: bits,
    "a signed number of its bits": lambda bits: bits.view(np.int16),
    "a bfloat16": lambda bits: bits.view(ml_dtypes.bfloat16),
    "a float16 with its bytes exchanged": lambda bits: bits.byteswap().view(np.float16),
    "its upper byte": lambda bits: bits >> 8,
    "its lower byte": lambda bits: bits & 255,
}


def scale_bits(tensor: StoredTensor) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (name, values) for each other reading of a block's scale, of its minimum, and of both."""
    if tensor.type not in BLOCK_TYPES:
        return
    parts = parts_of(tensor.type, tensor.data.reshape(-1, BLOCK_TYPES[tensor.type].bytes))
    if parts is None:
        return
    own = {"d": np.asarray(parts.d, np.float64), "dmin": np.asarray(parts.dmin, np.float64)}
    halves = {name: y.astype(np.float16) for name, y in own.items()}
    whole = [name for name, y in own.items() if np.array_equal(halves[name].astype(np.float64), y) and y.any()]
    right = parts.values()
    with np.errstate(all="ignore"):
        for words, read in _READ.items():
            for names in ([one] for one in whole) if len(whole) < 2 else (["d"], ["dmin"], ["d", "dmin"]):
                other = {n: np.asarray(read(halves[n].view(np.uint16)), np.float64) for n in names}
                y = parts._replace(**other).values()
                if not np.array_equal(y, right):
                    yield (
                        f"{tensor.type}: {' and '.join(names)} read as {words}",
                        y.reshape(tensor.shape).astype(np.float32),
                    )
