"""Load the model component that a case asks for, with its weights."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from refsd.components import COMPONENTS, forward, load
from refsd.files.stored import NamedTensors
from refsd.golden.case import Case, ModelRecipe
from refsd.golden.engine import ModelFiles
from refsd.golden.judge import Inputs
from refsd.module import Module, WeightCache
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import StoredTensor
from refsd.weights.checkpoint import Checkpoint, open_checkpoint

PREFIX = "model/"


def component_of(case: Case) -> str:
    return case.op.removeprefix(PREFIX)


def answer_if_taken(
    name: str, m: Module, inputs: Mapping[str, np.ndarray], params: dict[str, Any], source: str
) -> dict[str, np.ndarray] | None:
    """Return a component's answer to inputs that a bug has changed; None if it refuses them."""
    try:
        return forward(name, m, inputs, params, source)
    except BadInput:
        return None


class _Weights(NamedTensors):
    """Some of a case's inputs, each read where it is used: those of a graph may be larger than the memory."""

    def __init__(self, inputs: Inputs, names: Collection[str]):
        self._inputs, self.names = inputs, dict.fromkeys(names)

    def __getitem__(self, name: str) -> StoredTensor:
        if name not in self.names:
            raise KeyError(name)
        return self._inputs[name]


class Components:
    """Loads the component of each case; the file of the last model stays open.

    model_files: model recipe, layout -> file of its weights
    """

    def __init__(self, model_files: ModelFiles | None):
        self._model_files = model_files
        self._opened: tuple[ModelRecipe, Checkpoint] | None = None

    def __call__(
        self, case: Case, inputs: Inputs, arithmetic: Arithmetic, cache: WeightCache | None = None
    ) -> tuple[Module, dict[str, np.ndarray], dict[str, Any]]:
        """Return the case's component, input values and parameters. Raises BadInput if it needs a missing model."""
        name = component_of(case)
        if COMPONENTS[name].part is None:
            # The case of a block or of a graph has its weights among its inputs, under their key names.
            arguments = [key for key in COMPONENTS[name].arguments if key in inputs]
            weights = _Weights(inputs, [key for key in inputs if key not in arguments])
            return Module(weights, arithmetic), {key: inputs[key].values() for key in arguments}, case.params
        values = {name: tensor.values() for name, tensor in inputs.items()}
        if case.model is None or self._model_files is None:
            raise BadInput(
                f"{case.name}: the case needs a model: name its recipe, and give the reference model_files"
            )
        if self._opened is None or self._opened[0] != case.model:
            self._opened = None
            self._opened = case.model, open_checkpoint(self._model_files(case.model, "ldm"))
        m, params = load(self._opened[1], name, arithmetic, cache)
        return m, values, {**params, **case.params}
