"""Engines that read ONNX: a case of an operation or of a model goes to them as a graph, in a process of their own.

The file of such an engine has, beside find():

    execute(model, feeds, settings) -> outputs by name
        model: serialized; feeds: arrays by name. Called in the engine's own process; an exception becomes the
        case's failure.
"""

import importlib
import sys
from collections.abc import Callable, Collection, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from refsd.engines.worker import Worker, serve
from refsd.golden.case import Case
from refsd.golden.engine import EngineFailure, EngineSearch, ModelFiles, NoDeviations, NotJudged
from refsd.golden.wording import how_to_install
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import Numerics
from refsd.numerics.tensor import StoredTensor, stored

if TYPE_CHECKING:
    from refsd.onnx.case_model import CaseModel

Settings = Mapping[str, Any]


class Elsewhere(RuntimeError):
    """A node ran on another device than the one that was asked for. Raised by `execute`."""


_MODEL = "model/"
# Cases of models that a run without --cases asks: one of each kind of network. Judging all would take minutes.
USUAL = (
    "sd15/clip/short",
    "sd15/vae-decoder/wide",
    "sd3-medium/mmdit/between",
    "flux-dev/flux/between",
    "t5xxl/t5/padded",
    "qwen3-4b/qwen3/quiet",
)
# Bytes of weights that fit in a message of protobuf, which holds less than 2 GiB.
_MESSAGE = (2 << 30) - (64 << 20)
Refusal = Callable[[Case], str | None]


class OnnxEngine(NoDeviations):
    """Answer cases of operations and of models through their graphs.

    name:        of the engine
    module:      of refsd/engines, which executes
    version:     of the package that computes
    numerics:    what it declares
    settings:    what `execute` is given; None: nothing
    refusal:     why the engine does not take a case that can be written in ONNX
    device:      what computes, if it is not the processor: each case is then tried first, and refused if a node of
                 it ran elsewhere
    model_files: model recipe, layout -> its files; None: the engine refuses cases of models
    outputs_last: how matrices in blocks lie: Builder.outputs_last
    quantized:   how cases of operations are written: Builder.quantized
    process:     of another engine of this module, which then computes for this one, too
    """

    def __init__(
        self,
        name: str,
        module: str,
        version: str,
        numerics: Numerics,
        settings: Settings | None = None,
        refusal: Refusal = lambda case: None,
        timeout: float = 300.0,
        device: str = "",
        model_files: ModelFiles | None = None,
        outputs_last: bool = False,
        quantized: bool = False,
        process: Worker | None = None,
    ):
        self.name, self.version, self.device = name, version, device
        self._numerics, self._refusal, self._model_files = numerics, refusal, model_files
        self._settings, self.process = settings or {}, process or Worker(["-m", __name__, module], timeout)
        self._traced: tuple[Any, CaseModel] | None = None
        self._laid, self._quantized = {"outputs_last": outputs_last}, quantized

    def refuses(self, case: Case) -> str | None:
        from refsd.onnx.export import refuses

        return refuses(case) or self._refuses_model(case) or self._refusal(case) or self._went_elsewhere(case)

    def _refuses_model(self, case: Case) -> str | None:
        from refsd.onnx.trace.model_graph import bytes_of_weights

        if case.model is None:
            return None
        if self._model_files is None:
            return "no folder to write the model's weights to"
        large = bytes_of_weights(case.op, case.model) > _MESSAGE
        return "its graph is larger than a message of protobuf" if large else None

    def _went_elsewhere(self, case: Case) -> str | None:
        if not self.device:
            return None
        try:
            self.run(case, case.realize())
        except EngineFailure as error:
            kind, _, what = str(error).partition(": ")
            return what if kind == Elsewhere.__name__ else None
        return None

    def numerics(self, case: Case) -> Numerics:
        return self._numerics

    def run(self, case: Case, inputs: Mapping[str, StoredTensor]) -> dict[str, np.ndarray]:
        if case.op.startswith(_MODEL):
            return self.run_with(case, inputs, ())
        from refsd.onnx.case_model import case_model

        return self._execute(_written(case_model, case, inputs, quantized=self._quantized, **self._laid))

    def run_tapped(
        self, case: Case, inputs: Mapping[str, StoredTensor]
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        if not self.can_force(case):
            return self.run(case, inputs), {}
        graph = self._tapped_graph(case, inputs)
        return _apart(graph, self._execute(graph))

    def run_with(
        self, case: Case, inputs: Mapping[str, StoredTensor], taps: Collection[str]
    ) -> dict[str, np.ndarray]:
        graph = _with_taps(self._tapped_graph(case, inputs), taps)
        return _apart(graph, self._execute(graph))[0]

    def usual(self, case: Case) -> bool:
        return not case.op.startswith(_MODEL) or case.name in USUAL

    def can_force(self, case: Case) -> bool:
        return case.op.startswith(_MODEL)

    def run_forced(
        self, case: Case, inputs: Mapping[str, StoredTensor], forced: Mapping[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        from refsd.onnx.trace.model_graph import model_graph

        graph = _written(model_graph, case, inputs, self._model_files, taps=True, forced=forced, **self._laid)
        return _apart(graph, self._execute(graph))

    def _tapped_graph(self, case: Case, inputs: Mapping[str, StoredTensor]) -> "CaseModel":
        """Trace a case of a model; the last graph is kept, for the run without its taps."""
        from refsd.onnx.trace.model_graph import model_graph

        key = case, {name: tensor.data.tobytes() for name, tensor in inputs.items()}
        if self._traced is None or self._traced[0] != key:
            self._traced = None
            self._traced = key, _written(model_graph, case, inputs, self._model_files, taps=True, **self._laid)
        return self._traced[1]

    def _execute(self, graph: "CaseModel") -> dict[str, np.ndarray]:
        sent = {f"feed:{name}": stored(array) for name, array in graph.feeds.items()}
        sent["model"] = stored(np.frombuffer(graph.model.SerializeToString(), np.uint8))
        _, results = self.process.ask(self._settings, sent)
        return {name: tensor.data for name, tensor in results.items()}


def _written(write: Callable[..., "CaseModel"], case: Case, *arguments, **options) -> "CaseModel":
    """Write a case in ONNX. Raises NotJudged if refsd cannot: the engine has not seen it yet."""
    try:
        return write(case, *arguments, **options)
    except BadInput:
        raise
    except Exception as error:
        raise NotJudged(f"refsd cannot write it in ONNX: {type(error).__name__}: {error}") from error


def _with_taps(graph: "CaseModel", taps: Collection[str]) -> "CaseModel":
    """The graph with these taps alone: an engine does not fuse away what is an output."""
    model = type(graph.model)()
    model.CopyFrom(graph.model)
    left_out = {*graph.taps} - {*taps}
    outputs = [output for output in model.graph.output if output.name not in left_out]
    del model.graph.output[:]
    model.graph.output.extend(outputs)
    return graph._replace(model=model, taps=[name for name in graph.taps if name in taps])


def _apart(
    graph: "CaseModel", answers: dict[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Tell outputs and taps of a graph apart."""
    taps = {name: answers[name] for name in graph.taps}
    return {name: y for name, y in answers.items() if name not in taps}, taps


def missing(name: str, extra: str, *packages: str) -> list[EngineSearch]:
    """The search's answer if a package is not installed; otherwise nothing. extra: of refsd, which has them"""
    absent = [package for package in ("onnx", *packages) if find_spec(package) is None]
    if not absent:
        return []
    return [EngineSearch(name, None, f"{absent[0]} is not installed: {how_to_install(extra)}")]


def _main(module: str) -> None:
    execute = importlib.import_module(f"refsd.engines.{module}").execute

    def answer(settings, tensors):
        feeds = {name.removeprefix("feed:"): t.data for name, t in tensors.items() if name.startswith("feed:")}
        outputs = execute(tensors["model"].data.tobytes(), feeds, settings)
        return {}, {name: stored(np.asarray(y, order="C")) for name, y in outputs.items()}

    serve(answer)


if __name__ == "__main__":
    _main(*sys.argv[1:])
