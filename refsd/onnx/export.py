"""Write cases as ONNX's backend tests: a folder with a model, what it is fed and what must come back.

<folder>/<case>/model.onnx                            and model.onnx.data, where the weights are large
<folder>/<case>/test_data_set_0/input_0.pb, ...       in the order of the graph's inputs
<folder>/<case>/test_data_set_0/output_0.pb, ...      the float64 truth in the output's type, float32
<folder>/<case>/truth, bound                          in float64, as .npy
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from refsd.export.cases import Export
from refsd.export.formats import Entry
from refsd.files.writers import Advance
from refsd.golden.case import Case
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import StoredTensor, stored
from refsd.onnx import case_model as operations
from refsd.onnx.case_model import CaseModel
from refsd.onnx.trace import model_graph as models

# Bytes of a model from which its weights stand in a file of their own. protobuf holds no message of 2 GiB.
EXTERNAL_FROM = 64 << 20
_DATA_SET = "test_data_set_0"


def refuses(case: Case) -> str | None:
    """Say why a case cannot be written in ONNX; None if it can."""
    return (models if case.op.startswith("model/") else operations).refuses(case)


def sayable(cases: Sequence[Case]) -> tuple[list[Case], dict[str, str]]:
    """-> the cases that can be written in ONNX; by name, why the others cannot. Raises BadInput if none can."""
    refused = {case.name: reason for case in cases if (reason := refuses(case)) is not None}
    if len(refused) == len(cases):
        name, reason = next(iter(refused.items()))
        raise BadInput(f"{name}: {reason}; write --format safetensors")
    return [case for case in cases if case.name not in refused], refused


class OnnxExport(Export):
    """Write inputs and answers as a backend test. A CaseEntry's inputs are in the graph's order.

    Weights stand in the graphs. With taps, those of a model are outputs of its graph, behind its own.
    """

    def __init__(self, folder, form, numerics, model_files, weights, taps):
        super().__init__(folder, form, numerics, model_files, False, taps)

    def _asked(
        self, case: Case, inputs: Mapping[str, StoredTensor], truth: Mapping[str, np.ndarray], advance: Advance
    ) -> dict[str, Entry]:
        if case.op.startswith("model/"):
            built = models.model_graph(case, inputs, self._model_files, taps=self._with_taps)
        else:
            built = operations.case_model(case, inputs)
        place = self._folder / case.name
        save(built, place, EXTERNAL_FROM)
        fed = [value.name for value in built.model.graph.input]
        entries = {
            name: self._pb(case, f"input_{i}.pb", name, built.feeds[name], advance) for i, name in enumerate(fed)
        }
        for i, value in enumerate(built.model.graph.output[: len(truth)]):
            self._pb(case, f"output_{i}.pb", value.name, truth[value.name].astype(np.float32), advance)
        return entries

    def _pb(self, case: Case, file: str, name: str, array: np.ndarray, advance: Advance) -> Entry:
        path = self._folder / case.name / _DATA_SET / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(numpy_helper.from_array(array, name).SerializeToString())
        advance(array.nbytes)
        return Entry(f"{case.name}/{_DATA_SET}/{file}", stored(array).type, array.shape, "TensorProto")


def save(built: CaseModel, folder: Path, external_from: int) -> None:
    """Write model.onnx, checked by ONNX's checker; its weights beside it from this size on."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    if built.model.ByteSize() < external_from:
        onnx.save_model(built.model, path)
    else:
        onnx.save_model(built.model, path, save_as_external_data=True, location="model.onnx.data")
    onnx.checker.check_model(path, full_check=True)
