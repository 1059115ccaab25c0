"""How ONNX says an operation."""

from collections.abc import Callable, Mapping
from typing import Any

from refsd.onnx.builder import Builder, Value

# builder, float32 values by name, complete params -> y
Function = Callable[[Builder, Mapping[str, Value], Mapping[str, Any]], Value]
