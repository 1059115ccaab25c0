"""The operations of golden/operations/ as ONNX nodes, a file a family."""

from refsd.onnx.operations import (
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
from refsd.onnx.operations.function import Function

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
