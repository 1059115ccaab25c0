"""An engine that takes tensors in any memory layout, and whose crash or hang ends only its own process."""

from collections.abc import Mapping
from dataclasses import replace

import msgspec
import numpy as np

from refsd.engines.worker import Worker
from refsd.golden.case import Case
from refsd.golden.engine import Engine, EngineDied, EngineFailure, ServingEngine, TappedEngine
from refsd.numerics.deviations import Deviation
from refsd.numerics.profiles import TORCH_F32_CHANNELS_LAST, Numerics
from refsd.numerics.tensor import StoredTensor
from refsd.requests.random_case import lay_out

Answer = dict[str, np.ndarray]
_ONE_PASS = "channels_last"


class IsolatedEngine:
    """
    layout:  of the tensors of the next case, for engines that take any
    refused: why the engine refused the last case when it was asked; "" if it answered or died
    """

    def __init__(self, engine: Engine, argument: str | None = None, timeout: float = 60.0):
        """
        argument: the engine, as the command line calls it: then torch answers in a process of its own
        timeout:  seconds for one of its answers
        """
        self.engine, self.name, self.version = engine, engine.name, engine.version
        self.any_layout = bool(getattr(engine, "any_layout", False))
        self.layout, self.refused = "contiguous", ""
        # What runs in this process takes refsd with it when it crashes: it gets a process of its own.
        self._worker = None
        if argument is not None and self.any_layout:
            self._worker = Worker(["-m", "refsd.requests.worker", argument, engine.name], timeout)

    def refuses(self, case: Case) -> str | None:
        return self.engine.refuses(case)

    def numerics(self, case: Case) -> Numerics:
        """What the engine declares; torch's norms take a variance in one pass where the channels come last."""
        numerics = self.engine.numerics(case)
        return (
            replace(numerics, one_pass=TORCH_F32_CHANNELS_LAST.one_pass)
            if self.any_layout and self.layout == _ONE_PASS
            else numerics
        )

    def deviations(self, case: Case) -> tuple[Deviation, ...]:
        return self.engine.deviations(case)

    def run(self, case: Case, inputs: Mapping[str, StoredTensor]) -> dict[str, np.ndarray]:
        return self._answer(case, inputs, False)[0]

    def run_tapped(self, case: Case, inputs: Mapping[str, StoredTensor]) -> tuple[Answer, Answer]:
        """Outputs, and the taps of an engine that has some."""
        return self._answer(case, inputs, isinstance(self.engine, TappedEngine))

    def _answer(self, case: Case, inputs: Mapping[str, StoredTensor], tapped: bool) -> tuple[Answer, Answer]:
        self.refused = ""
        try:
            if self._worker is None:
                inputs = laid_out(inputs, self.layout) if self.any_layout else inputs
                if tapped and isinstance(self.engine, TappedEngine):
                    return self.engine.run_tapped(case, inputs)
                return self.engine.run(case, inputs), {}
            plain = Case(case.name, case.op, case.inputs, case.params, case.model)
            header = {"case": msgspec.to_builtins(plain), "layout": self.layout, "tapped": tapped}
            reply, tensors = self._worker.ask(header, inputs)
            outputs = {name: tensors[f"{i}"].data for i, name in enumerate(reply["outputs"])}
            first = len(outputs)
            return outputs, {name: tensors[f"{first + i}"].data for i, name in enumerate(reply["taps"])}
        except EngineFailure as error:
            self.refused = "" if isinstance(error, EngineDied) else str(error)
            raise


class IsolatedServing(IsolatedEngine):
    """One that answers all cases in one process: a case that fails is also asked in a fresh one."""

    engine: ServingEngine

    def run_alone(self, case: Case, inputs: Mapping[str, StoredTensor], tapped: bool) -> tuple[Answer, Answer]:
        return self.engine.run_alone(case, inputs, tapped)


def laid_out(inputs: Mapping[str, StoredTensor], layout: str) -> dict[str, StoredTensor]:
    return {name: lay_out(tensor, layout) for name, tensor in inputs.items()}
