"""The operations of golden/operations/ as ggml graphs, one file a family."""

from refsd.engines.ggml.ops import (
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
from refsd.engines.ggml.ops.builder import Builder, Refusal

BUILDERS: dict[str, Builder] = {
    **products.BUILDERS,
    **convolution.BUILDERS,
    **norms.BUILDERS,
    **activations.BUILDERS,
    **attention.BUILDERS,
    **positions.BUILDERS,
    **resampling.BUILDERS,
    **layout.BUILDERS,
    **blocks.BUILDERS,
    **adapters.BUILDERS,
}
REFUSALS: dict[str, Refusal] = {**positions.REFUSALS, **resampling.REFUSALS, **layout.REFUSALS}
FLASH_BUILDERS: dict[str, Builder] = attention.FLASH_BUILDERS
# What ggml takes a request for its precision for: products, and attention in one operation.
REQUESTED_BUILDERS: dict[str, Builder] = {**products.BUILDERS, **attention.FLASH_BUILDERS}
DIRECT_BUILDERS: dict[str, Builder] = convolution.DIRECT_BUILDERS
