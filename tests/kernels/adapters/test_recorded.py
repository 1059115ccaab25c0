"""What LyCORIS and PEFT answered, recorded by tests/fixtures/record_adapters.py: 1e-12, without either of them."""

import json
from pathlib import Path

import numpy as np
import pytest
import tiny_adapters as tiny

from refsd.kernels.adapters import Conv2d, Linear
from refsd.numerics.tensor import stored
from refsd.weights.adapter_kinds import Parts, build
from refsd.weights.adapter_names import split
from refsd.weights.adapter_settings import of_module

RECORDED = json.loads((Path(__file__).parents[2] / "fixtures" / "adapters.json").read_text())["answers"]


@pytest.mark.parametrize("case", RECORDED)
def test_recorded(case):
    recorded = RECORDED[case]
    kind = case.rpartition("/")[2]
    arrays = {name: tiny.drawn(case, name, tuple(shape)) for name, shape in recorded["parts"].items()}
    arrays |= {name: np.array(value) for name, value in recorded["numbers"].items()}
    parts = {split(f"x.{name}")[1]: stored(array) for name, array in arrays.items()}
    weight, bias, x = tiny.layer_of(case, kind).values()
    settings = of_module(recorded["settings"], "layer")
    adapter = build(Parts(parts, weight.shape, lambda t: np.array(t.values(), np.float64), settings))
    if kind == "linear":
        layer = Linear(weight, bias)
    else:
        stride, padding = tiny.KINDS_OF_LAYER[kind][2]
        layer = Conv2d(weight, bias, stride, (padding,) * 4)
    base = layer.apply(x, weight) + layer.channels(bias)
    for strength, want in recorded["y"].items():
        adapter.forward(x, base, layer, out := base.copy(), float(strength))
        assert np.linalg.norm(np.subtract(tiny.few(out), want)) < 1e-12 * np.linalg.norm(want)
        assert np.linalg.norm(np.subtract(tiny.few(base), want)) > 1e-3 * np.linalg.norm(want)


def test_every_kind_was_recorded():
    assert len(RECORDED) >= 80 and {case.split("/")[0] for case in RECORDED} == {"lycoris", "peft"}
    weaker = [case for case, recorded in RECORDED.items() if set(recorded["y"]) == {"1", "0.7", "-0.5"}]
    assert len(weaker) >= 70 and all(case in weaker for case in RECORDED if case.startswith("lycoris"))
