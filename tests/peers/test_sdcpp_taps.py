"""The layers inside an unmodified sd-cli, as taps; and a file with a wrong tensor, found at its layer."""

import os
import re

import pytest
from safetensors.numpy import load_file, save_file

from refsd.cases import select
from refsd.engines.reference import Reference
from refsd.engines.sdcpp.engine import find
from refsd.golden import verdict
from refsd.golden.conform import Runner, run
from refsd.judges import judges
from refsd.numerics.profiles import FLOAT64
from refsd.weights.model_files import model_files

pytestmark = pytest.mark.peer
(CASE,) = select("flux/schnell/256-tokens")
WRONG = "single_blocks.0.linear1.bias"


def engine(files):
    found = find(os.environ["REFSD_SD_CLI"], model_files=files)[0].engine
    assert found is not None
    return found


def test_a_wrong_tensor_is_found_at_its_layer(tmp_path):
    """sd-cli reads a file in which one bias is of the other sign."""

    def other(recipe, layout):
        path = model_files(recipe, layout)
        if recipe != CASE.model:
            return path
        tensors = load_file(path)
        (name,) = [name for name in tensors if name.endswith(WRONG)]
        tensors[name] = -tensors[name]
        save_file(tensors, tmp_path / "wrong.safetensors")
        return tmp_path / "wrong.safetensors"

    reference = Reference(FLOAT64, model_files=model_files)
    runner = Runner(judges(model_files), lambda case: reference.run(case, case.realize()), ())
    (result,) = run(runner, [engine(other)], [CASE])
    assert result.status == verdict.FAIL
    assert result.place.startswith(WRONG.removesuffix(".bias")), result.place
    ((wrong, taps),) = re.findall(r"(\d+) of (\d+) taps wrong", result.reason)
    assert wrong == "1"
    assert int(taps) >= 20
