"""The operations of golden/operations/ by JAX's own functions, a file a family."""

from refsd.engines.arrays.adapters import adapters
from refsd.engines.arrays.array_engine import Library
from refsd.engines.arrays.composed import composed
from refsd.engines.jax.ops import activations, attention, convolution, layout, norms, positions, resampling

# Inferred from the answers: XLA's code for float16 and bfloat16 rounds between operations, unless a function widens
# first.
_ROUNDS = "jitted by XLA it rounds between its steps to the dtype, which no profile declares"
_COMPOSED = (
    *("softmax", "silu", "sigmoid", "leaky_relu", "swiglu"),
    *("avg_pool2d", "resize_bilinear", "resize_bicubic"),
)

LIBRARY = Library(
    "jax",
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
    refusals={**attention.REFUSALS, **resampling.REFUSALS},
    rounding=norms.ROUNDING,
    rounded=dict.fromkeys(_COMPOSED, _ROUNDS),
)
