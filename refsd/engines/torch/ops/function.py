"""How torch answers an operation."""

from collections.abc import Callable, Mapping
from typing import Any

# torch, tensors by name, params -> y. torch is handed over: importing it takes seconds.
Function = Callable[[Any, Mapping[str, Any], Mapping[str, Any]], Any]
