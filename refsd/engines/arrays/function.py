"""How an array library answers an operation."""

from collections.abc import Callable, Mapping
from typing import Any

from refsd.golden.case import Case

# library, tensors by name, params -> y. The library is handed over: only its worker process imports it.
Function = Callable[[Any, Mapping[str, Any], Mapping[str, Any]], Any]
# Returns the reason why the library's function cannot compute a case, or None if it can.
Refusal = Callable[[Case], str | None]
