"""The type of functions that compute an operation by torch."""

from collections.abc import Callable, Mapping
from typing import Any

# torch, tensors by name, params -> y. torch is an argument because importing it takes seconds.
Function = Callable[[Any, Mapping[str, Any], Mapping[str, Any]], Any]
