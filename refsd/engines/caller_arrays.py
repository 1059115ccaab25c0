"""Take arrays as callers have them: NumPy arrays, torch tensors on any device, numbers and nested lists."""

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from refsd.engines.torch.state import array as from_torch
from refsd.golden.wording import did_you_mean
from refsd.numerics.errors import BadInput

_NUMBERS = "fiub"
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def as_array(name: str, value: Any) -> np.ndarray:
    """Return a NumPy array of the same values and dtype, bfloat16 as ml_dtypes has it.

    Raises BadInput for what holds no numbers. name: for the message
    """
    try:
        of_torch = type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "detach")
        y = from_torch(value) if of_torch else np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"{name}: not an array of numbers: {' '.join(str(error).split())}") from None
    if y.dtype.kind not in _NUMBERS and y.dtype != _BFLOAT16:
        raise BadInput(f"{name} is {type(value).__name__} of dtype {y.dtype}, expected floats or integers")
    return y


def as_arrays(value: Any, names: list[str], case: str) -> dict[str, np.ndarray]:
    """Return a case's outputs by name, from a mapping, or from one array where the case has one output.

    names: of the case's outputs

    Raises BadInput for an unknown name, and for one array where there are several outputs.
    """
    if not isinstance(value, Mapping):
        if len(names) != 1:
            raise BadInput(f"{case} has the outputs {', '.join(names)}: give a mapping of names to arrays")
        value = {names[0]: value}
    for name in value:
        if name not in names:
            meant = did_you_mean(name, names)
            raise BadInput(f"{case} has no output {str(name)!r}{meant}; it has {', '.join(names)}")
    if not value:
        raise BadInput(f"{case}: no array given; it has the outputs {', '.join(names)}")
    return {name: as_array(name, y) for name, y in value.items()}
