"""Block types: how GGUF packs weights into blocks, a file each. This table is all that callers need."""

from refsd.kernels.quant.block_type import BlockType
from refsd.kernels.quant.q2_k import Q2_K
from refsd.kernels.quant.q3_k import Q3_K
from refsd.kernels.quant.q4_0 import Q4_0
from refsd.kernels.quant.q4_1 import Q4_1
from refsd.kernels.quant.q4_k import Q4_K
from refsd.kernels.quant.q5_0 import Q5_0
from refsd.kernels.quant.q5_1 import Q5_1
from refsd.kernels.quant.q5_k import Q5_K
from refsd.kernels.quant.q6_k import Q6_K
from refsd.kernels.quant.q8_0 import Q8_0
from refsd.kernels.quant.q8_1 import Q8_1
from refsd.kernels.quant.q8_k import Q8_K

BLOCK_TYPES: dict[str, BlockType] = {
    t.name: t for t in (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_K)
}

__all__ = ["BLOCK_TYPES", "BlockType"]
