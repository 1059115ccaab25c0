"""Engines of others are told by their answers: torch in three types, ggml's CPU."""

import pytest

from refsd.engines.chosen import one_engine
from refsd.numerics.profiles import PROFILES
from refsd.profiling.described import described
from refsd.profiling.pages import PROBES
from refsd.profiling.profile import ask_all, matches

pytestmark = pytest.mark.peer

# What costs little and tells much.
ASKED = {("linear", name) for name in ("activations", "weights", "result", "sum", "q8_0 weights", "q4_k weights")}
ASKED |= {("conv2d", "activations"), ("conv2d", "algorithm"), ("attention", "mask"), ("gelu_tanh", "types")}
ASKED |= {("group_norm", "variance"), ("silu", "types")}
# Where ComfyUI's profiles round activations, and SageAttention's queries and keys; torch's do not.
IN_FEW_BITS = ("i8 weights", "f8_e4m3 weights", "nvfp4_comfy weights", "codes of scores")
FEW = [probe for probe in PROBES if (probe.op, probe.name) in ASKED]


@pytest.mark.parametrize("engine", ["torch", "torch-f16", "torch-bf16"])
def test_torch_is_named(engine):
    probes = [*FEW, *(probe for probe in PROBES if probe.name in IN_FEW_BITS)]
    answers = ask_all(one_engine(engine), probes)
    assert not answers.refused and not answers.failed
    same = [match.profile for match in matches(answers, probes) if not match.disagreements]
    assert same == [{"torch": "torch-f32"}.get(engine, engine)]


def test_ggml_is_named():
    answers = ask_all(one_engine("ggml"), FEW)
    assert not answers.refused and not answers.failed
    assert matches(answers, FEW)[0].profile in ("ggml-cpu", "ggml-cpu-f16-sums")  # by the processor
    numerics, _ = described(answers, PROFILES["float32"])
    assert numerics.activations == {"q8_0": "q8_0", "q4_k": "q8_k"}
    assert (numerics.gelu, numerics.storage, numerics.products) == ("f16", "float32", None)


def test_flash_attention_is_named():
    probes = [probe for probe in PROBES if probe.op == "attention"]
    answers = ask_all(one_engine("ggml-flash"), probes)
    same = {match.profile for match in matches(answers, probes) if not match.disagreements}
    assert same == {"ggml-cpu-flash", "ggml-vulkan-flash"}  # of attention both say the same
