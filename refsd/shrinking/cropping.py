"""A case with other inputs: those whose tensors are given are cropped, and expanded where the type is another."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec.structs import replace

from refsd.golden.case import Case
from refsd.golden.given_case import GivenCase
from refsd.golden.recipe import Recipe
from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import SCALAR_TYPES, StoredTensor


def with_inputs(case: Case, inputs: Mapping[str, Recipe], params: Mapping[str, Any] | None = None) -> Case:
    """The case with these inputs and parameters. Raises BadInput where a given tensor is too small for them."""
    params = dict(case.params if params is None else params)
    if not isinstance(case, GivenCase):
        return replace(case, inputs=dict(inputs), params=params)
    tensors = {name: _cropped(case.tensors[name], recipe) for name, recipe in inputs.items()}
    return replace(case, inputs=dict(inputs), params=params, tensors=tensors)


def _cropped(tensor: StoredTensor, recipe: Recipe) -> StoredTensor:
    """The beginning of a tensor along each axis; of an axis that is too many the first."""
    shape = tuple(recipe.shape)
    if (tensor.shape, tensor.type) == (shape, recipe.type):
        return tensor
    if tensor.type != recipe.type:
        if recipe.type != "f32":
            raise BadInput(f"a given tensor is {tensor.type}, not {recipe.type}")
        tensor = StoredTensor("f32", tensor.shape, np.asarray(tensor.values(), np.float32))
    if tensor.scaling is not None:
        raise BadInput(f"a tensor of type {tensor.type} with a scale is not cropped")
    if tensor.type in SCALAR_TYPES:
        return tensor._replace(shape=shape, data=np.ascontiguousarray(_beginning(tensor.data, shape)))
    block = BLOCK_TYPES[tensor.type]
    if not shape or shape[-1] % block.block:
        raise BadInput(f"{list(shape)} is no whole number of blocks")
    blocks = tensor.data.reshape(*tensor.shape[:-1], -1, block.bytes)
    data = _beginning(blocks, (*shape[:-1], shape[-1] // block.block, block.bytes))
    return tensor._replace(shape=shape, data=np.ascontiguousarray(data).reshape(-1))


def _beginning(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    too_many = x.ndim - len(shape)
    if too_many < 0:
        raise BadInput(f"{list(shape)} has more axes than {list(x.shape)}")
    x = x[(0,) * too_many]
    if any(n > there for n, there in zip(shape, x.shape, strict=True)):
        raise BadInput(f"{list(shape)} is larger than {list(x.shape)}")
    return x[tuple(slice(n) for n in shape)]
