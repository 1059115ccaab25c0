"""Cut the operations at a wrong tap out of their model: one case per operation, on the engine's own inputs."""

from collections.abc import Mapping

import numpy as np

from refsd.causes.model.observed import Call
from refsd.golden.conform import Answered
from refsd.golden.given_case import GivenCase
from refsd.golden.judge import Judge
from refsd.golden.recipe import Recipe
from refsd.judges.model import ModelJudge
from refsd.numerics.tensor import StoredTensor


def operations_at(judge: Judge, answered: Answered) -> list[GivenCase]:
    """Return a case for each operation between the first wrong tap and the engine's tap before it, last first.

    The inputs of each follow from the engine's own earlier taps. Operations without a page in golden/operations
    are left out. Empty if no tap is wrong.
    """
    if not isinstance(judge, ModelJudge) or not answered.examined.wrong:
        return []
    tap, standard = answered.examined.wrong[0], answered.standard
    place = judge.place(standard, {**answered.taps, **answered.actual}, tap)
    name = f"{standard.case.name}/{tap}"
    calls = [call for _, call in place.calls()]
    if calls:
        calls[0] = _with_stored_weight(calls[0], place.weights, tap)
    return [_case(call, name) for call in calls]


def _with_stored_weight(call: Call, weights: Mapping[str, StoredTensor], tap: str) -> Call:
    """Return the call with its weight as stored in the model's file, if the tap is the output of a layer."""
    own, there = call.inputs.get("weight"), weights.get(f"{tap}.weight")
    if own is None or there is None or not np.array_equal(np.asarray(there.values(), np.float32), own.values()):
        return call
    return call._replace(inputs={**call.inputs, "weight": there})


def _case(call: Call, name: str) -> GivenCase:
    tensors = {argument: _copied(tensor) for argument, tensor in call.inputs.items()}
    recipes = {argument: Recipe(tensor.shape, tensor.type) for argument, tensor in tensors.items()}
    return GivenCase(f"{name}/{call.op}", call.op, recipes, dict(call.params), None, tensors)


def _copied(tensor: StoredTensor) -> StoredTensor:
    """Copy a tensor into memory: weights are views of a memory-mapped file."""
    return tensor._replace(data=np.array(tensor.data))
