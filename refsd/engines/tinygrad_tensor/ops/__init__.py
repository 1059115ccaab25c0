"""The operations of golden/operations/ by tinygrad's own functions, a file a family."""

from refsd.engines.arrays.adapters import adapters
from refsd.engines.arrays.array_engine import Library
from refsd.engines.arrays.composed import composed
from refsd.engines.tinygrad_tensor.ops import (
    activations,
    attention,
    convolution,
    layout,
    norms,
    positions,
    resampling,
)

LIBRARY = Library(
    "tinygrad",
    functions={
        **composed(lambda x, axes: x.permute(axes)),
        **adapters(convolution.convolve),
        **convolution.FUNCTIONS,
        **norms.FUNCTIONS,
        **activations.FUNCTIONS,
        **attention.FUNCTIONS,
        **positions.FUNCTIONS,
        **resampling.FUNCTIONS,
        **layout.FUNCTIONS,
    },
    refusals={**attention.REFUSALS, **resampling.REFUSALS},
    rounding={},
    rounded={},
)
