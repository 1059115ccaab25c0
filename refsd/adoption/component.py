"""An adopted graph as a component, as the judges of models know it."""

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from refsd.adoption.graph import Graph
from refsd.module import Module
from refsd.networks.component import IDS, MASK, POSITION, VALUE, Argument, Component
from refsd.networks.fits import Fit
from refsd.onnx.evaluate import Expected
from refsd.onnx.evaluate.element_types import ELEMENT_TYPES

_ANY = Fit(2**62, "any", lambda value: True)


class Running(NamedTuple):
    """A graph as the function of a component."""

    graph: Graph

    def __call__(self, m: Module, **values: Any) -> dict[str, np.ndarray]:
        return self.graph.run(m, values)


def component_of_graph(graph: Graph, arguments: Collection[str], shapes: dict[str, tuple[int, ...]]) -> Component:
    """Return the component that runs a graph.

    arguments: inputs that are no weights
    shapes:    of all inputs
    """

    taken = {
        one.name: Argument(" ".join(map(str, shapes[one.name])), _kind(one, shapes[one.name]), "of the graph")
        for one in graph.inputs
        if one.name in arguments
    }
    return Component(None, Running(graph), taken, dict.fromkeys(graph.outputs, ""), {}, lambda m: {"V": _ANY})


def _kind(one: Expected, shape: tuple[int, ...]) -> str:
    """Times and the like, a number for each item of a batch, are never rounded."""
    kind = ELEMENT_TYPES[one.number]
    if kind.is_float:
        return VALUE if len(shape) > 1 else POSITION
    return MASK if kind.name == "bool" else IDS
