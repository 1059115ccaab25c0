"""Engines that read ONNX: a case goes to them as a model, in a process of their own.

Such an engine is a folder whose engine.py has, beside find():

    execute(model, feeds, settings) -> outputs by name
        model: serialized; feeds: arrays by name. Called in the engine's own process; an exception becomes the
        case's failure.
"""

import importlib
import json
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np

from refsd.engines.worker import Worker, serve
from refsd.golden.case import Case
from refsd.golden.engine import EngineFailure, EngineSearch
from refsd.numerics.deviations import Deviation
from refsd.numerics.profiles import Numerics
from refsd.numerics.tensor import StoredTensor, stored

Settings = Mapping[str, Any]


class Elsewhere(RuntimeError):
    """A node ran on another device than the one that was asked for. Raised by `execute`."""


Refusal = Callable[[Case], str | None]


class OnnxEngine:
    """Answer cases of operations through their ONNX models.

    name:     of the engine
    folder:   of refsd/engines, whose engine.py executes
    version:  of the package that computes
    numerics: what it declares for a case
    settings: what `execute` is given
    refusal:  why the engine does not take a case that can be written in ONNX
    device:   what computes, if it is not the processor: each case is then tried first, and refused if a node of it
              ran elsewhere
    """

    def __init__(
        self,
        name: str,
        folder: str,
        version: str,
        numerics: Callable[[Case], Numerics],
        settings: Settings,
        refusal: Refusal = lambda case: None,
        timeout: float = 300.0,
        device: str = "",
    ):
        self.name, self.version, self.device = name, version, device
        self._numerics, self._refusal = numerics, refusal
        self._worker = Worker(["-m", "refsd.engines.by_onnx", folder, json.dumps(dict(settings))], timeout)

    def refuses(self, case: Case) -> str | None:
        from refsd.onnx import case_model

        return case_model.refuses(case) or self._refusal(case) or self._went_elsewhere(case)

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
        return self._numerics(case)

    def deviations(self, case: Case) -> tuple[Deviation, ...]:
        return ()

    def run(self, case: Case, inputs: Mapping[str, StoredTensor]) -> dict[str, np.ndarray]:
        from refsd.onnx.case_model import case_model

        model, feeds = case_model(case, inputs)
        sent = {f"feed:{name}": stored(array) for name, array in feeds.items()}
        sent["model"] = stored(np.frombuffer(model.SerializeToString(), np.uint8))
        _, results = self._worker.ask({}, sent)
        return {name: tensor.data for name, tensor in results.items()}


def missing(name: str, extra: str, *packages: str) -> list[EngineSearch]:
    """The search's answer if a package is not installed; otherwise nothing. extra: of refsd, which has them"""
    absent = [package for package in ("onnx", *packages) if find_spec(package) is None]
    if not absent:
        return []
    return [EngineSearch(name, None, f"{absent[0]} is not installed: pip install 'refsd[{extra}]'")]


def _main(folder: str, settings: str) -> None:
    execute = importlib.import_module(f"refsd.engines.{folder}.engine").execute
    how = json.loads(settings)

    def answer(header, tensors):
        feeds = {name.removeprefix("feed:"): t.data for name, t in tensors.items() if name.startswith("feed:")}
        outputs = execute(tensors["model"].data.tobytes(), feeds, how)
        return {}, {name: stored(np.ascontiguousarray(y)) for name, y in outputs.items()}

    serve(answer)


if __name__ == "__main__":
    _main(*sys.argv[1:])
