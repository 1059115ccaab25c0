"""What a case can see, measured by a command; changes far below the rounding of an element are seen by taps."""

import json
import math

import pytest
from typer.testing import CliRunner

from refsd.cases import CASES
from refsd.cli import app
from refsd.golden.judge import Standard
from refsd.golden.verdict import judge_output
from refsd.judges import thresholds as page
from refsd.judges.thresholds import KINDS, _bench, _smallest, thresholds
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64, GGML_CPU, TORCH_F16

pytestmark = pytest.mark.jitted  # whole models
NAME = "clip-l/clip/ended"


def seen(kind, name, numerics, change, size):
    """The layer that is bent; each wrong tap and what its error holds; their metrics."""
    case = CASES[name]
    bench, _ = _bench(kind, case, case.realize(), numerics)
    of = next(of for of in KINDS if of.name.startswith(change))
    taps = page._Bent(bench.at, lambda y: of.bend(y, size)) if of.bend else page.Taps(ops=True)
    arithmetic = (of.wrong(size) if of.wrong else Arithmetic)(numerics)
    found = kind.tapped(case, case.realize(), arithmetic, taps)
    shown = {tap: y for tap, y in taps.items() if tap in bench.layers}
    trace = kind.trace(case, case.realize(), {**shown, **found}, numerics)
    wrong = [m for m in trace.taps if not judge_output(m).passed]
    return bench.at, {m.output: {p.change: p for p in m.along if abs(p.size) > p.allowed} for m in wrong}, wrong


@pytest.mark.parametrize(
    ("numerics", "change", "size", "said"),
    [
        (GGML_CPU, "one layer times", 1e-4, "gain"),
        (TORCH_F16, "one layer times", 1e-3, "gain"),
        (TORCH_F16, "one channel", 1e-2, "gain of channel 0"),
    ],
)
def test_a_layer_slightly_off_is_placed_with_its_size(kind, numerics, change, size, said):
    at, wrong, _ = seen(kind, NAME, numerics, change, size)
    assert [*wrong] == [at] and abs(wrong[at][said].size - size) < max(4 * wrong[at][said].error, 0.03 * size)


def test_a_tenth_of_eps_is_seen_in_usual_data(kind):
    _, wrong, _ = seen(kind, NAME, GGML_CPU, "eps", -0.9)
    eps = wrong["text_model.encoder.layers.0.layer_norm1"]["eps ten times too large"]
    assert eps.size == pytest.approx(-0.1, rel=0.1)


def test_what_no_element_shows_is_told_with_its_error(kind):
    at, wrong, (metrics,) = seen(kind, NAME, TORCH_F16, "one layer times", 5e-4)
    assert judge_output(metrics).criterion == "projection"
    assert judge_output(metrics).reason.startswith(f"{at}: {wrong[at]['gain'].phrase}, ")


def test_an_engine_without_a_change_fails_at_no_size():
    class Never:
        def fails(self, change, size, by_taps):
            return size >= limit

    limit = math.inf
    assert _smallest(Never(), KINDS[0], True) is None
    limit = 3e-4
    assert limit <= _smallest(Never(), KINDS[0], True) <= 2 * limit


def test_kinds_are_those_of_the_models_operations(kind, monkeypatch):
    monkeypatch.setattr(page, "_smallest", lambda bench, change, by_taps: 0.5)
    names = [t.change for t in thresholds(kind, CASES[NAME], GGML_CPU)]
    assert any("eps" in name for name in names) and not any("theta" in name for name in names)


def test_the_command_prints_a_table(kind, monkeypatch):
    monkeypatch.setattr(page, "_smallest", lambda bench, change, by_taps: 0.0123 if by_taps else None)
    result = CliRunner().invoke(app, ["golden", "thresholds", NAME, "--numerics", "torch-f16"])
    assert result.exit_code == 0 and "| one layer times 1 + s | - / 0.01 |" in result.stdout
    result = CliRunner().invoke(app, ["golden", "thresholds", NAME, "--numerics", "torch-f16", "--json"])
    assert json.loads(result.stdout)["eps times 1 + s"]["torch-f16"] == {"outputs": None, "taps": 0.0123}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["clip-l/clip/end"], "no case 'clip-l/clip/end' (did you mean"),
        (["silu/f32/bend-x33x77"], "tiny models"),
        ([NAME, "--numerics", "f16"], "--numerics f16: expected one of float64"),
    ],
)
def test_bad_usage_is_one_line(words, said):
    from refsd.numerics.errors import BadInput

    result = CliRunner().invoke(app, ["golden", "thresholds", *words])
    assert isinstance(result.exception, BadInput) and said in str(result.exception)


def test_the_standard_is_the_references(kind):
    bench, _ = _bench(kind, CASES[NAME], CASES[NAME].realize(), TORCH_F16)
    assert isinstance(bench.standard, Standard) and bench.at in bench.layers
    truth = kind.answer(CASES[NAME], CASES[NAME].realize(), Arithmetic(FLOAT64))
    assert all((bench.standard.truth[name] == y).all() for name, y in truth.items())
