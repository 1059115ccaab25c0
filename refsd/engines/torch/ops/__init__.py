"""The operations of golden/operations/ by torch, one file per family."""

from refsd.engines.torch.ops import (
    activations,
    adapters,
    attention,
    blocks,
    convolution,
    layout,
    norms,
    positions,
    products,
    resampling,
)
from refsd.engines.torch.ops.function import Function

FUNCTIONS: dict[str, Function] = {
    **products.FUNCTIONS,
    **convolution.FUNCTIONS,
    **norms.FUNCTIONS,
    **activations.FUNCTIONS,
    **attention.FUNCTIONS,
    **positions.FUNCTIONS,
    **resampling.FUNCTIONS,
    **layout.FUNCTIONS,
    **blocks.FUNCTIONS,
    **adapters.FUNCTIONS,
}
