"""sd-cli on the first Vulkan device, such as Mesa's lavapipe: $REFSD_SD_CLI_VULKAN is built with -DSD_VULKAN=ON.

.ci/peers builds none: its shaders take a quarter of an hour.
"""

import datetime
import os

import pytest

from refsd.cases import CASES
from refsd.engines import registry
from refsd.engines.reference import Reference
from refsd.golden import conform, verdict
from refsd.golden.engine import EngineFailure
from refsd.judges import judges
from refsd.numerics.profiles import FLOAT64
from refsd.weights.model_files import model_files

PROGRAM = os.environ.get("REFSD_SD_CLI_VULKAN", "")
pytestmark = [
    pytest.mark.peer,
    pytest.mark.slow,  # and outside CI, which builds no such program
    pytest.mark.skipif(not PROGRAM, reason="REFSD_SD_CLI_VULKAN: no sd-cli with Vulkan"),
]
CASE = CASES["tae/taef1/decoder"]


@pytest.fixture(scope="module", autouse=True)
def software_too():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GGML_VK_VISIBLE_DEVICES", "0")
        patch.setenv("GGML_VK_DISABLE_F16", "1")
        yield


def judged(argument):
    def truths(case):
        return Reference(FLOAT64, model_files=model_files).run(case, case.realize())

    engine = registry.find(argument, model_files=model_files)[0].engine
    runner = conform.Runner(judges(model_files), truths, today=datetime.date(2026, 11, 23))
    (result,) = conform.run(runner, [engine], [CASE])
    return result


def test_a_decoder_conforms_on_the_device():
    result = judged(f"sdcpp:{PROGRAM}@Vulkan0")
    assert (result.engine, result.status) == ("sdcpp@Vulkan0", verdict.PASS), result.reason


def test_a_program_that_falls_back_to_the_cpu_is_found_out():
    """With its devices hidden, sd-cli warns and computes on the CPU."""
    engine = registry.find(f"sdcpp:{PROGRAM}@Vulkan0", model_files=model_files)[0].engine
    assert engine is not None and engine.device.startswith("Vulkan0 (")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GGML_VK_VISIBLE_DEVICES", "")
        with pytest.raises(EngineFailure, match="Vulkan0 was asked and CPU computed a graph"):
            engine.run(CASE, CASE.realize())


def test_a_program_that_takes_a_device_unasked_is_found_out():
    result = judged(f"sdcpp:{PROGRAM}")
    assert result.status == verdict.ERROR and "name it sdcpp@Vulkan0" in result.reason
