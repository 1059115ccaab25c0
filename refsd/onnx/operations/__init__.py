"""The operations of golden/operations/ as ONNX nodes, a file a family, found by itself."""

from refsd.golden.pages import rows
from refsd.onnx.operations.function import Function

FUNCTIONS: dict[str, Function] = rows(__name__, "FUNCTIONS")
