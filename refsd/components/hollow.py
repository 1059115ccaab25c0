"""Constraints of a recipe model on its inputs, from the shapes of its weights alone: no file is made or read."""

import functools
from collections.abc import Mapping

import numpy as np

from refsd.components import COMPONENTS
from refsd.golden.case import Case, ModelRecipe
from refsd.models.catalogue import NETWORKS
from refsd.module import Module
from refsd.networks.fits import Fit
from refsd.numerics.tensor import SCALAR_TYPES, StoredTensor
from refsd.weights.recipes import model_of, size_of


def hollow_module(case: Case) -> Module:
    """A case's component with weights of which only the shapes are right. Raises BadInput for an unknown family."""
    assert case.model is not None
    return Module(_weights(case.model, case.op.removeprefix("model/")))


def fits_of(case: Case) -> Mapping[str, Fit]:
    """Return what the model of a case asks of sizes, parameters and inputs; nothing for a picture.

    Raises BadInput for an unknown family.
    """
    if case.op.removeprefix("model/") not in COMPONENTS:
        return {}
    return COMPONENTS[case.op.removeprefix("model/")].fits(hollow_module(case))


@functools.cache
def _weights(model: ModelRecipe, name: str) -> Mapping[str, StoredTensor]:
    component, parts = COMPONENTS[name], model_of(model).parts
    held = (component.part, *component.beside)
    shapes = {
        part: NETWORKS[part].shapes(size_of(model, part)) for part in held if part is not None and part in parts
    }
    own = shapes.pop(component.part or "", {})
    found = dict(own)
    for part, other in shapes.items():
        names = component.beside[part](own, other, model.family)
        found |= {here: other[there] for here, there in names.items()}
    zero = np.zeros((), SCALAR_TYPES["f32"])
    return {name: StoredTensor("f32", shape, np.broadcast_to(zero, shape)) for name, shape in found.items()}
