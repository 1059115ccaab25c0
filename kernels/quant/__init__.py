"""Block types: how GGUF packs weights into blocks, one file for each type. Callers only need the table here."""

from refsd.kernels.quant.block_type import BlockType
from refsd.kernels.quant.iq1_m import IQ1_M
from refsd.kernels.quant.iq1_s import IQ1_S
from refsd.kernels.quant.iq2_s import IQ2_S
from refsd.kernels.quant.iq2_xs import IQ2_XS
from refsd.kernels.quant.iq2_xxs import IQ2_XXS
from refsd.kernels.quant.iq3_s import IQ3_S
from refsd.kernels.quant.iq3_xxs import IQ3_XXS
from refsd.kernels.quant.iq4_nl import IQ4_NL
from refsd.kernels.quant.iq4_xs import IQ4_XS
from refsd.kernels.quant.mxfp4 import MXFP4
from refsd.kernels.quant.nvfp4 import NVFP4
from refsd.kernels.quant.q1_0 import Q1_0
from refsd.kernels.quant.q2_0 import Q2_0
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
from refsd.kernels.quant.tq1_0 import TQ1_0
from refsd.kernels.quant.tq2_0 import TQ2_0

# In the order of their numbers.
BLOCK_TYPES: dict[str, BlockType] = {
    t.name: t
    for t in (
        *(Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1),
        *(Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_K),
        *(IQ2_XXS, IQ2_XS, IQ3_XXS, IQ1_S, IQ4_NL, IQ3_S, IQ2_S, IQ4_XS, IQ1_M),
        *(TQ1_0, TQ2_0, MXFP4, NVFP4, Q1_0, Q2_0),
    )
}

__all__ = ["BLOCK_TYPES", "BlockType"]
