"""The operations of golden/operations/ by torch, one file per family, found by itself."""

from refsd.engines.torch.ops.function import Function
from refsd.golden.pages import rows

FUNCTIONS: dict[str, Function] = rows(__name__, "FUNCTIONS")
