"""What judging and diagnosing a failing model holds in memory is a multiple of its taps, and of its weights."""

import tracemalloc

import numpy as np
import pytest
from injection import Injected, wrong_operation

from refsd.cases import CASES
from refsd.causes.model import place
from refsd.judges import taps_in_memory
from refsd.judges.taps_in_memory import bytes_of, with_errors_kept
from refsd.numerics.profiles import FLOAT32, TORCH_BF16
from refsd.shrinking.failure import ask, runner_of
from refsd.weights.recipe_files import RecipeFiles
from refsd.weights.recipes import size

# docs/verdict.md: so many times all taps in float64, and the float32 weights expanded to float64.
TAPS, WEIGHTS = 7, 2


@pytest.fixture(scope="module")
def model_files(tmp_path_factory):
    with RecipeFiles(tmp_path_factory.mktemp("models")) as files:
        yield files


def louder(self, right, *arguments, **named):
    return 1.01 * right(*arguments, **named)


EVERYWHERE = wrong_operation(linear=louder, layer_norm=louder, rms_norm=louder, gelu=louder, silu=louder)


def peak_of(case, bug, numerics, model_files):
    """Bytes at the most, beyond what was there before; and those of the taps in float64."""
    runner, engine = runner_of(model_files), Injected(bug, numerics, model_files)
    taps = engine.run_tapped(case, case.realize())[1]
    bytes_of_taps = sum(8 * y.size for y in taps.values())
    del taps
    ask(runner, engine, case)  # kernels are compiled, files made
    tracemalloc.start()
    try:
        result = ask(runner, engine, case)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert result is not None and result.place and not result.conforms
    return peak, bytes_of_taps


@pytest.mark.jitted
@pytest.mark.parametrize("numerics", [FLOAT32, TORCH_BF16], ids=lambda numerics: numerics.name)
@pytest.mark.parametrize("name", ["clip-l/clip/ended", "flux-dev/flux/between"])
def test_the_peak_is_a_multiple_of_the_taps(name, numerics, model_files, monkeypatch):
    """Every tap is wrong. Without KEPT, bytes that are always allowed, small models are measured as large ones."""
    monkeypatch.setattr(taps_in_memory, "KEPT", 0)
    monkeypatch.setattr(place, "KEPT", 0)
    case = CASES[name]
    peak, taps = peak_of(case, EVERYWHERE, numerics, model_files)
    assert peak < TAPS * taps + WEIGHTS * size(case.model), (peak / taps, peak, taps, size(case.model))


def test_scattered_runs_are_kept_of_as_many_taps_as_fit(monkeypatch):
    monkeypatch.setattr(taps_in_memory, "KEPT", 0)
    taps = {f"{i}": np.zeros(10) for i in range(30)}
    each = 8 * 10 * 5
    assert bytes_of(taps) == 30 * 80 and list(with_errors_kept(taps, 5, 3 * each)) == ["0", "1", "2"]
    assert list(with_errors_kept(taps, 5, 0)) == ["0"] and len(list(with_errors_kept(taps, 5, 100 * each))) == 20
