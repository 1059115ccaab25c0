"""ggml-vulkan on the first Vulkan device, such as Mesa's lavapipe: its libraries are in $REFSD_GGML_VULKAN."""

import datetime
import os
from pathlib import Path

import pytest

from refsd.cases import CASES
from refsd.engines import registry
from refsd.engines.ggml.engine import GgmlLibrary
from refsd.engines.reference import Reference
from refsd.golden import conform, verdict
from refsd.judges import judges
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64, TORCH_F32

FOLDER = os.environ.get("REFSD_GGML_VULKAN", "")
pytestmark = [
    pytest.mark.peer,
    pytest.mark.skipif(not FOLDER, reason="REFSD_GGML_VULKAN: no folder with libggml-vulkan"),
]
# Few: each shader takes seconds to compile on a processor.
EXACT = ("silu/f32/wide-x2x320", "tanh/f32/bend-x33x77", "adaptive_layer_norm/f32/mean-n2-l10-d132")


@pytest.fixture(scope="module", autouse=True)
def software_too():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GGML_VK_VISIBLE_DEVICES", "0")
        patch.setenv("GGML_VK_DISABLE_F16", "1")
        yield


@pytest.fixture(scope="module")
def engine():
    return registry.find(f"ggml:{FOLDER}@Vulkan0")[0].engine


def judged(engine, names):
    def truths(case):
        return Reference(FLOAT64).run(case, case.realize())

    runner = conform.Runner(judges(), truths, today=datetime.date(2026, 11, 23))
    return conform.run(runner, [engine], [CASES[name] for name in names])


def test_cases_conform_on_the_device(engine):
    assert engine.name == "ggml@Vulkan0" and engine.device.startswith("Vulkan0 (")
    for result in judged(engine, EXACT):
        assert result.status == verdict.PASS, result.reason


def test_what_a_shader_computes_is_not_a_librarys(engine, monkeypatch):
    monkeypatch.setattr(engine, "numerics", lambda case: TORCH_F32)
    assert [result.status for result in judged(engine, EXACT)] == [verdict.FAIL] * len(EXACT)


def test_an_unknown_device_is_one_line():
    with pytest.raises(BadInput, match=r"^this libggml has no device CUDA0, only Vulkan0 \(.*\), CPU \(.*\)$"):
        GgmlLibrary(Path(FOLDER), 1, 60.0, "CUDA0")


def test_a_request_for_a_factor_in_float32_is_ignored_beside_bfloat16():
    """docs/ggml.md. The sums' request is kept."""
    case = "linear/bf16/tokens-x77x320-o33"
    for request, status in (("f32", verdict.FAIL), ("bf16", verdict.PASS)):
        (found,) = registry.find(f"ggml-prec-{request}:{FOLDER}@Vulkan0")
        (result,) = judged(found.engine, [case])
        assert result.status == status, result.reason
