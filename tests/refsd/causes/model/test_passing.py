"""The search for a cause passes over layers that nobody asks for, which changes nothing; and it ends in time."""

import time

import numpy as np
import pytest

from refsd.cases import CASES
from refsd.causes.model.following import PRODUCTS
from refsd.causes.model.mutants import MUTANTS
from refsd.causes.model.observed import Observed
from refsd.golden import search_cuts
from refsd.golden.judge import Standard
from refsd.judges import model as page
from refsd.judges.scattered import Scattered
from refsd.module import Taps
from refsd.networks.wrong_operations import LargeEps, OtherGelu, QuickGelu
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT32, FLOAT64, TORCH_F16

pytestmark = pytest.mark.jitted  # whole models

# A model, and a tap in its middle.
PLACES = {
    "clip-l/clip/ended": "text_model.encoder.layers.1.mlp.fc1",
    "flux-dev/flux/quiet": "single_blocks.0.linear2",
}


def layers(kind, name, numerics):
    """An honest engine's taps: those of layers with weights."""
    case, taps = CASES[name], Taps(ops=True)
    outputs = kind.tapped(case, case.realize(), Arithmetic(numerics), taps)
    weights = kind._module(case, case.realize(), Arithmetic(numerics))[0].weights
    known = {key.removesuffix(".weight") for key in weights} | {*weights}
    return case, outputs, {tap: y for tap, y in taps.items() if tap in known}


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("numerics", [FLOAT64, FLOAT32, TORCH_F16], ids=lambda n: n.name)
def test_what_is_passed_over_makes_no_difference(kind, name, numerics):
    case, _, found = layers(kind, name, FLOAT32)
    inputs, tap = case.realize(), PLACES[name]
    whole = Observed(numerics)
    taps, _ = kind._follow(case, inputs, found, whole)
    given = {other: y for other, y in taps.shaped.items() if other != tap}
    short = Observed(numerics)
    passed, _ = kind._follow(case, inputs, found, short, tap, given=given)
    np.testing.assert_array_equal(passed[tap], taps[tap])
    assert passed.segments.keys() < taps.segments.keys() and short.ops == whole.ops[: len(short.ops)]
    assert sum(loss == 0 for loss in short.losses) >= 3


@pytest.mark.parametrize("name", PLACES)
def test_a_change_moves_what_it_moves_though_products_are_taken_from_the_right_run(kind, name):
    case, _, found = layers(kind, name, FLOAT32)
    inputs = case.realize()
    right, _ = kind._follow(case, inputs, found, Observed(FLOAT64), keeps=PRODUCTS)
    for change in (LargeEps, OtherGelu, QuickGelu):
        whole, outputs = kind._follow(case, inputs, found, change(FLOAT64))
        taps, y = kind._follow(case, inputs, found, change(FLOAT64), right=right)
        assert taps.recorded == whole.recorded and taps.keys() == whole.keys() and len(taps.taken) >= 10
        for tap in whole:
            np.testing.assert_array_equal(taps[tap], whole[tap], tap)
        for output in outputs:
            np.testing.assert_array_equal(y[output], outputs[output], output)
    assert any((taps[tap] != right[tap]).any() for tap in taps)
    assert not any((taps[tap] != right[tap]).any() for tap in taps.taken)


def test_a_bug_shows_at_its_place_alone(kind):
    name = "clip-l/clip/ended"
    case, _, found = layers(kind, name, FLOAT32)
    inputs, tap = case.realize(), PLACES[name]
    taps, _ = kind._follow(case, inputs, found, Observed(FLOAT32))
    given = {other: y for other, y in taps.shaped.items() if other != tap}
    changes = {mutant.name: mutant.change for mutant in MUTANTS}
    missing, swapped = changes["biases are missing"], changes["q and k are swapped"]
    bent, _ = kind._follow(case, inputs, found, Arithmetic(FLOAT32), tap, missing, given)
    assert not np.allclose(bent[tap], taps[tap])
    none, _ = kind._follow(case, inputs, found, Arithmetic(FLOAT32), tap, swapped, given)
    assert not none, "the layer's own weights are not swapped"


def test_random_roundings_are_those_of_a_whole_run(kind):
    name = "clip-l/clip/ended"
    case, _, found = layers(kind, name, FLOAT32)
    inputs, tap = case.realize(), PLACES[name]
    taps, _ = kind._follow(case, inputs, found, Observed(FLOAT64))
    given = {other: y for other, y in taps.shaped.items() if other != tap}

    def spread(given):
        return kind._spreads(case, inputs, found, {tap: taps[tap]}, FLOAT32, (), given)[tap]

    np.testing.assert_allclose(np.mean(spread(given)), np.mean(spread({})), rtol=0.05)
    of_calls = []
    for seed in range(2):
        scattered = Scattered(FLOAT32, np.random.default_rng(seed), of_calls)
        kind._follow(case, inputs, found, scattered, given=given)
        assert len(of_calls) == len(scattered.ops)


def test_the_search_at_a_tap_ends_in_time(kind, monkeypatch):
    """A bug that nothing explains, on a clock on which each look takes a second."""
    name = "flux-dev/flux/quiet"
    case, outputs, found = layers(kind, name, FLOAT32)
    tap = PLACES[name]
    found[tap] = found[tap] * (1 + 0.05 * np.sin(np.arange(found[tap].size) * 0.7).reshape(found[tap].shape))
    outputs = {key: y * 1.3 for key, y in outputs.items()}
    truth = kind.answer(case, case.realize(), Arithmetic(FLOAT64))
    standard = Standard(case, case.realize(), truth, truth, FLOAT32)
    looks = []
    monkeypatch.setattr(page, "_SEARCH", 24.0)
    monkeypatch.setattr(search_cuts, "_computing", lambda: looks.append(len(looks)) or float(len(looks)))
    begun = time.monotonic()
    assert kind.explain(standard, {**found, **outputs}, tap).causes == []
    assert page._SEARCH <= len(looks) <= page._SEARCH + 6 and time.monotonic() - begun < 20
