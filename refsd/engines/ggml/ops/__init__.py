"""The operations of golden/operations/ as ggml graphs, one file a family, found by itself."""

from refsd.engines.ggml.ops import attention, convolution, products
from refsd.engines.ggml.ops.builder import Builder, Refusal
from refsd.golden.pages import rows

BUILDERS: dict[str, Builder] = rows(__name__, "BUILDERS")
REFUSALS: dict[str, Refusal] = rows(__name__, "REFUSALS")
FLASH_BUILDERS: dict[str, Builder] = attention.FLASH_BUILDERS
# What ggml takes a request for its precision for: products, and attention in one operation.
REQUESTED_BUILDERS: dict[str, Builder] = {**products.BUILDERS, **attention.FLASH_BUILDERS}
DIRECT_BUILDERS: dict[str, Builder] = convolution.DIRECT_BUILDERS
