"""A case whose tensors are given, not made from recipes."""

from typing import Any

import msgspec

from refsd.golden.case import Case
from refsd.numerics.tensor import StoredTensor


class GivenCase(Case, frozen=True):
    """A case with given tensors.

    tensors: input -> StoredTensor, of its recipe's shape and type; inputs that are not here are made from recipes
    """

    tensors: dict[str, Any] = msgspec.field(default_factory=dict)

    def realize(self) -> dict[str, StoredTensor]:
        """Return every input."""
        rest = Case(self.name, self.op, {k: r for k, r in self.inputs.items() if k not in self.tensors})
        return {**rest.realize(), **self.tensors}
