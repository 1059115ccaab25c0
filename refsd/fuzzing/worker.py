"""The process in which an engine answers that would run in refsd's: `python -m refsd.fuzzing.worker KIND NAME`."""

import sys
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from refsd.engines import registry
from refsd.engines.worker import serve
from refsd.fuzzing.asked import laid_out
from refsd.golden.case import Case
from refsd.golden.engine import EngineFailure
from refsd.numerics.tensor import StoredTensor, stored


def main(kind: str, name: str) -> None:
    """Answer {"case": ..., "layout": ...} until stdin closes."""
    engine = next(one.engine for one in registry.find(kind) if one.engine is not None and one.engine.name == name)

    def answer(header: Mapping[str, Any], inputs: Mapping[str, StoredTensor]):
        case = msgspec.convert(header["case"], Case)
        try:
            outputs = engine.run(case, laid_out(inputs, header["layout"]))
        except EngineFailure as error:
            return {"error": str(error)}, {}
        return {}, {name: stored(np.ascontiguousarray(y)) for name, y in outputs.items()}

    serve(answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
