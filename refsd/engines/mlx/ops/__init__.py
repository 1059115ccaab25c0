"""The operations of golden/operations/ by MLX's own functions, a file a family."""

from refsd.engines.arrays.adapters import adapters
from refsd.engines.arrays.array_engine import Library
from refsd.engines.arrays.composed import composed
from refsd.engines.mlx.ops import activations, attention, convolution, layout, norms, positions, resampling

LIBRARY = Library(
    "mlx",
    functions={
        **composed(lambda x, axes: x.transpose(axes)),
        **adapters(convolution.convolve),
        **convolution.FUNCTIONS,
        **norms.FUNCTIONS,
        **activations.FUNCTIONS,
        **attention.FUNCTIONS,
        **positions.FUNCTIONS,
        **resampling.FUNCTIONS,
        **layout.FUNCTIONS,
    },
    refusals={
        **convolution.REFUSALS,
        **attention.REFUSALS,
        **positions.REFUSALS,
        **resampling.REFUSALS,
        **layout.REFUSALS,
    },
    rounding={},
    rounded={**activations.ROUNDED, **attention.ROUNDED, **positions.ROUNDED, **resampling.ROUNDED},
)
