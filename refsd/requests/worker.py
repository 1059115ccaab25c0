"""The process in which an engine answers that would run in refsd's: `... refsd.requests.worker ARGUMENT NAME`."""

import sys
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from refsd.engines import registry
from refsd.engines.worker import serve
from refsd.golden.case import Case
from refsd.golden.engine import EngineFailure, TappedEngine
from refsd.numerics.tensor import StoredTensor, stored
from refsd.requests.isolated_engine import laid_out
from refsd.weights.model_files import model_files, trim_model_files


def main(argument: str, name: str) -> None:
    """Answer {"case": ..., "layout": ..., "tapped": ...} until stdin closes."""
    found = registry.find(argument, model_files=model_files)
    engine = next(one.engine for one in found if one.engine is not None and one.engine.name == name)

    def answer(header: Mapping[str, Any], inputs: Mapping[str, StoredTensor]):
        case = msgspec.convert(header["case"], Case)
        inputs, taps = laid_out(inputs, header["layout"]), {}
        try:
            if header["tapped"] and isinstance(engine, TappedEngine):
                outputs, taps = engine.run_tapped(case, inputs)
            else:
                outputs = engine.run(case, inputs)
        except EngineFailure as error:
            return {"error": str(error)}, {}
        trim_model_files()
        tensors = [stored(np.asarray(y, order="C")) for y in (*outputs.values(), *taps.values())]
        return {"outputs": [*outputs], "taps": [*taps]}, {f"{i}": y for i, y in enumerate(tensors)}

    serve(answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
