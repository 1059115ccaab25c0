"""Run a graph over a Module: its operations with the roundings of an engine, its taps named by the module tree."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import onnx

from refsd.adoption.operations import OPERATIONS, Compute
from refsd.adoption.recognition import DOMAIN, parameters, recognised
from refsd.adoption.rotations import CALLS
from refsd.adoption.taps import MOVES, taps_of
from refsd.adoption.tidying import NEAR
from refsd.causes.model.following import Following
from refsd.causes.model.observed import Observed
from refsd.module import Module, Taps
from refsd.numerics.machine import memory
from refsd.onnx.evaluate import expected_inputs
from refsd.onnx.evaluate.budget import Budget
from refsd.onnx.evaluate.element_types import ELEMENT_TYPES
from refsd.onnx.evaluate.evaluation import Evaluation, Scope, Value, Weight, reads
from refsd.onnx.evaluate.file import Model, Tensor
from refsd.onnx.evaluate.node import Rules


class Step(NamedTuple):
    """A node as it runs.

    operation: what computes it; None: ONNX's operator
    params:    its parameters
    label:     name of the operation in reports: "linear", "div"
    taps:      the names under which its first output is recorded
    computes:  False if it only moves values, or gives no floats
    reads, gives: names of its inputs, those of graphs within it among them, and of its outputs
    """

    operation: Compute | None
    params: Mapping[str, Any]
    label: str
    taps: Sequence[str]
    computes: bool
    reads: Sequence[str]
    gives: Sequence[str]


class Graph:
    """A graph whose operations are recognised, ready to run.

    inputs:  all that it is given, weights among them
    outputs: name -> element type's number
    uses:    how often each name is read
    constants: the tensors of its file; True: as float32 holds them, where there are both
    """

    def __init__(self, model: Model):
        self.inputs = expected_inputs(model)
        self.model = recognised(model)
        self.outputs = {o.name: o.type.tensor_type.elem_type for o in self.model.proto.graph.output}
        self.types = {one.name: one.number for one in self.inputs}
        self.number = _commonest([one.number for one in self.inputs if one.shape and len(one.shape) > 1])
        graph = self.model.proto.graph
        types = {value.name: value.type.tensor_type.elem_type for value in graph.value_info}
        whole = {name for name, number in types.items() if number and not ELEMENT_TYPES[number].is_float}
        self.steps = [
            _step(node, taps, node.op_type not in MOVES and node.output[0] not in whole)
            for node, taps in zip(self.nodes, taps_of(graph), strict=True)
        ]
        self.uses = Counter(chain(self.outputs, *(step.reads for step in self.steps)))
        self.constants = {near: self._constants(near) for near in (False, True)}

    @property
    def nodes(self) -> Sequence[onnx.NodeProto]:
        return self.model.proto.graph.node

    def _constants(self, near: bool) -> Sequence[Tensor]:
        protos = {tensor.name: tensor for tensor in self.model.proto.graph.initializer}
        tensors = []
        for name, proto in protos.items():
            if not name.endswith(NEAR):
                tensors.append(self.model.tensor(protos.get(name + NEAR, proto) if near else proto))
                tensors[-1].name = name
        return tensors

    def run(self, m: Module, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs. values: those inputs that are no weights of m"""
        return _Run(self, m).outputs(values)


def _step(node: onnx.NodeProto, names: Sequence[str], computes: bool) -> Step:
    known = node.domain == DOMAIN
    operation, params = (OPERATIONS[node.op_type], parameters(node)) if known else (None, {})
    return Step(operation, params, node.op_type.lower(), names, computes, reads(node), tuple(node.output))


def _commonest(numbers: Sequence[int]) -> int:
    floats = [number for number in numbers if ELEMENT_TYPES[number].is_float]
    return max(set(floats), key=floats.count, default=onnx.TensorProto.FLOAT)


class _Run(Evaluation):
    """One run over one Module. Values between nodes are in the compute dtype, rounded to storage."""

    def __init__(self, graph: Graph, m: Module):
        rules = Rules(m.arithmetic.numerics.compute_dtype, exact=True)
        super().__init__(graph.model, rules, Budget(memory() // 2), Taps(""))
        self._graph, self._m, self._at = graph, m, -1
        self._needed = self._needs()

    def expand(self, tensor: Tensor | Weight) -> Value:
        if isinstance(tensor, Weight):  # of the Module
            return Value(tensor.values(), tensor.number)
        return super().expand(tensor)

    @np.errstate(all="ignore")
    def outputs(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        graph = self.model.proto.graph
        scope = Scope(self, self._graph.uses.copy())
        for one in self._graph.inputs:
            kind = ELEMENT_TYPES[one.number]
            if one.name in values:
                held = self.rules.dtype if kind.is_float else kind.held
                scope.set(one.name, Value(np.asarray(values[one.name], held), one.number))
            else:
                scope.add_tensor(Weight(one.name, (), one.number, partial(self._m.weight, one.name)))
        for tensor in self._graph.constants[self.rules.dtype == np.float32]:
            scope.add_tensor(tensor)
        self._run_nodes(graph.node, scope, self.model.opsets)
        return {o.name: np.ascontiguousarray(scope.get(o.name).array) for o in graph.output}

    def _reads(self, node: onnx.NodeProto) -> Sequence[str]:
        return super()._reads(node) if self._depth else self._graph.steps[self._at].reads

    def _run_node(self, proto: onnx.NodeProto, scope: Scope, versions: Mapping[str, int], given) -> None:
        if self._depth:  # of ONNX's definition of an operator by others
            super()._run_node(proto, scope, versions, given)
            return
        self._at += 1
        step, a = self._graph.steps[self._at], self._m.arithmetic
        if not self._needed[self._at]:
            if step.computes and isinstance(a, Observed):
                for _ in range(CALLS if step.label == "rope" else 1):
                    a.pass_over("apply")
            known = self._given(step)
            if known is not None:
                self._record(step, proto, scope, np.asarray(known, a.numerics.storage_dtype), self._graph.number)
            return
        values = [scope.get(name) if name else None for name in proto.input]
        if step.operation is not None:
            y = step.operation(a, step.params, *(None if v is None else v.array for v in values))
            self._record(step, proto, scope, y, self._graph.number)
            return
        first, *rest = self.compute(proto, values, scope, versions, given)
        assert first is not None
        y, number = first
        if step.computes and y.dtype.kind == "f":
            y = self._rounded(step, y, number, [v.array for v in values if v and v.array.dtype.kind == "f"])
        self._record(step, proto, scope, y, number)
        for name, value in zip(proto.output[1:], rest, strict=False):
            if name and value is not None:
                scope.set(name, value)

    def _rounded(self, step: Step, y: np.ndarray, number: int, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Round a result to storage, unless the graph computes it in another type than its weights have."""
        a = self._m.arithmetic
        if number != self._graph.number and a.numerics.storage != a.numerics.compute:
            if isinstance(a, Observed):
                a.pass_over("apply")
            return y

        def kernel(*_):
            return y

        kernel.__name__ = step.label
        return a.apply(kernel, *arrays)

    def _record(self, step: Step, proto: onnx.NodeProto, scope: Scope, y: np.ndarray, number: int) -> None:
        taps = self._m.taps
        if taps is not None and y.dtype.kind not in "iub":
            for name in step.taps:
                y = taps.record(name, y)
        dtype = self.rules.dtype if y.dtype.kind not in "iub" else y.dtype
        scope.set(proto.output[0], Value(np.asarray(y, dtype), number))

    def _needs(self) -> list[bool]:
        """Return which nodes must be computed: all, but where a Following asks for one tap or gives some."""
        taps, steps = self._m.taps, self._graph.steps
        if not isinstance(taps, Following):
            return [True] * len(steps)
        wanted = {*self._graph.outputs}
        for step in steps:
            if taps.until in step.taps:
                wanted = {*step.gives}
        needed = []
        for step in reversed(steps):
            computed = not wanted.isdisjoint(step.gives) and self._given(step) is None
            if computed:
                wanted.update(step.reads)
            needed.append(computed)
        return needed[::-1]

    def _given(self, step: Step) -> np.ndarray | None:
        """Return the value that a Following gives in place of a step's, whichever of its names has it."""
        taps = self._m.taps
        if not isinstance(taps, Following) or any(name in (taps.names or ()) for name in step.taps):
            return None
        given = [taps.next_given(name) for name in step.taps]
        return next((y for y in reversed(given) if y is not None), None)
