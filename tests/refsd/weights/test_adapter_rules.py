"""Adapters at strengths 1, 0.7 and -0.5 by the rules of engines, as ComfyUI and A1111 answered: within 1e-12.

tests/fixtures/record_adapter_engines.py has recorded the weights that they patched.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import tiny_adapters as tiny

from refsd.kernels.adapters import Conv2d, Linear
from refsd.numerics.tensor import stored
from refsd.weights.adapter_kinds import Misfit, Parts, build
from refsd.weights.adapter_names import split
from refsd.weights.adapter_rules import NAMES, RULES

FIXTURES = Path(__file__).parents[2] / "fixtures"
RECORDED = json.loads((FIXTURES / "adapter_engines.json").read_text())["answers"]
SHAPES = {"linear": (24, 16), "conv": (24, 16, 3, 3)}


def parts_of(arrays, shape, rule):
    parts = {split(f"x.{name}")[1]: stored(np.asarray(array)) for name, array in arrays.items()}
    return Parts(parts, shape, lambda t: np.array(t.values(), np.float64), rule=rule)


def drawn(case):
    """The parts and the weight of a recorded case."""
    recorded = RECORDED[case]
    arrays = {part: tiny.drawn(case, part, tuple(shape)) for part, shape in recorded["parts"].items()}
    weight = tiny.drawn(case, "weight", SHAPES[case.rpartition("/")[2]])
    return arrays | {part: np.array(number) for part, number in recorded["numbers"].items()}, weight


@pytest.mark.parametrize("case", RECORDED)
def test_as_the_engine_patches_the_weight(case):
    arrays, weight = drawn(case)
    adapter = build(parts_of(arrays, weight.shape, case.split("/")[0]))
    for strength, want in RECORDED[case]["w"].items():
        merged = weight + adapter.delta(weight, float(strength))
        assert np.linalg.norm(np.subtract(tiny.few(merged), want)) < 1e-12 * np.linalg.norm(want), strength
        assert np.linalg.norm(np.subtract(tiny.few(weight), want)) > 1e-4 * np.linalg.norm(want), strength


@pytest.mark.parametrize("case", RECORDED)
def test_what_runs_is_what_is_merged(case):
    arrays, weight = drawn(case)
    rng = np.random.default_rng(1)
    bias = rng.standard_normal(24)
    if weight.ndim == 2:
        layer, x = Linear(weight, bias), rng.standard_normal((2, 3, 16))
    else:
        layer, x = Conv2d(weight, bias, 2, (1, 0, 2, 1)), rng.standard_normal((2, 16, 7, 6))
    adapter = build(parts_of(arrays, weight.shape, case.split("/")[0]))
    base = layer.apply(x, weight) + layer.channels(bias)
    adapter.forward(x, base, layer, out := base.copy(), 0.7)
    want = layer.apply(x, weight + adapter.delta(weight, 0.7)) + layer.channels(bias)
    assert np.linalg.norm(out - want) < 1e-12 * np.linalg.norm(want)


def test_the_rules_are_not_one():
    """On a DoRA's rows at 0.7 no two of them agree; on an OFT with rescale none of those that load it."""
    for kind, few in (("dora", 5), ("oft", 3)):
        weight = tiny.drawn("rules", "weight", (24, 16))
        arrays = tiny.parts(kind, (24, 16), 1)
        merged = []
        for rule in RULES:
            try:
                merged.append(weight + build(parts_of(arrays, (24, 16), rule)).delta(weight, 0.7))
            except Misfit as misfit:
                assert "does not load" in str(misfit)
        assert len(merged) == few
        for i, one in enumerate(merged):
            assert all(np.abs(one - other).max() > 1e-3 for other in merged[:i])


@pytest.mark.parametrize(
    ("kind", "rule", "says"),
    [
        ("ia3", "comfyui", "ia3, which ComfyUI does not load"),
        ("glora", "a1111", "glora, which A1111 does not load"),
        ("oft", "peft", "oft, which PEFT does not load"),
        ("oft", "sdcpp", "oft, which stable-diffusion.cpp does not load"),
        ("oft_peft", "lycoris", "oft of PEFT, which LyCORIS does not load"),
        ("dora_input", "peft", "dora_scale of columns, which PEFT does not load"),
    ],
)
def test_what_an_engine_does_not_load_is_refused_by_name(kind, rule, says):
    with pytest.raises(Misfit, match=says):
        build(parts_of(tiny.parts(kind, (24, 16), 1), (24, 16), rule))


def test_a_boft_without_alpha():
    """ComfyUI logs an error and leaves the weight alone; the others have no constraint."""
    arrays = {"oft_blocks": tiny.parts("boft", (24, 16), 1)["oft_blocks"]}
    with pytest.raises(Misfit, match="BOFT without alpha, which ComfyUI does not apply"):
        build(parts_of(arrays, (24, 16), "comfyui"))
    build(parts_of(arrays, (24, 16), "a1111"))


def test_the_trainer_s_rule_is_that_of_who_wrote_the_parts():
    weight = tiny.drawn("rules", "weight", (24, 16))
    parts = tiny.parts("dora", (24, 16), 1)
    peft = {
        "lora_A.weight": parts["lora_down.weight"],
        "lora_B.weight": parts["lora_up.weight"],
        "lora_magnitude_vector": parts["dora_scale"].ravel(),
    }
    for arrays, named in ((parts, "lycoris"), (peft, "peft")):
        merged = [build(parts_of(arrays, (24, 16), rule)).delta(weight, 0.7) for rule in ("trainer", named)]
        np.testing.assert_array_equal(*merged)
    plain = {name: part for name, part in parts.items() if name != "dora_scale"}
    alone = build(parts_of(plain, (24, 16), "sdcpp")).delta(weight, 0.7)
    np.testing.assert_array_equal(build(parts_of(parts, (24, 16), "sdcpp")).delta(weight, 0.7), alone)


def test_both_engines_were_recorded_at_three_strengths():
    assert {case.split("/")[0] for case in RECORDED} == {"comfyui", "a1111"}
    assert all(set(recorded["w"]) == {"1", "0.7", "-0.5"} for recorded in RECORDED.values())
    assert len(RECORDED) >= 50 and set(NAMES) == {"trainer", *RULES}
