"""The API of four names: what it gives, what it says of a wrong answer, and what an import of refsd costs."""

import doctest
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import refsd
import refsd.api
import refsd.watching
from refsd.cases import CASES
from refsd.golden.case import ModelRecipe
from refsd.numerics.errors import BadInput

ROOT = Path(__file__).parents[2]
SILU = "silu/f32/bend-x33x77"
TAE = "taesd/tae-decoder/outliers"


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REFSD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(refsd.api.STORE, raising=False)


def silu(x):
    return x / (1 + np.exp(-x))


@pytest.mark.jitted
def test_the_examples_of_the_page_and_of_the_docstrings():
    page = doctest.testfile(str(ROOT / "docs/python.md"), module_relative=False, verbose=False)
    module = doctest.testmod(refsd.api)
    watching = doctest.testmod(refsd.watching)
    assert watching.attempted == 1 and not watching.failed
    assert (page.failed, module.failed) == (0, 0) and page.attempted > 8 and module.attempted > 8


def test_an_import_of_refsd_loads_nothing_of_it_and_golden_stays_a_package():
    script = (
        "import sys, refsd; print([m for m in sys.modules if m.startswith('refsd.') or m == 'numpy']);"
        "print(callable(refsd.golden)); import refsd.golden.wording as w; print(w.counted(2, 'case'))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "True", "2 cases"]
    assert {"golden", "judge", "assert_conforms", "forward", "watch"} <= {*dir(refsd)}
    with pytest.raises(AttributeError, match="gold"):
        refsd.gold  # noqa: B018


def test_golden_is_computed_once_and_kept(tmp_path, monkeypatch):
    first = refsd.golden(SILU)
    assert first.op == "silu" and first.types == {"x": "f32"} and first.weights is None
    assert np.array_equal(first.truth["y"], silu(first.inputs["x"].astype(np.float64)), equal_nan=True) or (
        np.allclose(first.truth["y"], silu(first.inputs["x"].astype(np.float64)), rtol=1e-15)
    )
    monkeypatch.setattr("refsd.engines.reference.Reference.run", None)
    assert np.array_equal(refsd.golden(SILU).truth["y"], first.truth["y"])
    assert (tmp_path / "cache/goldens/cases" / f"{SILU}.json").exists()


def test_blocks_are_bytes_and_parameters_are_complete():
    case = refsd.golden(next(name for name in CASES if name.startswith("linear/q4_k")))
    weight = case.inputs["weight"]
    assert case.types["weight"] == "q4_k" and weight.dtype == np.uint8 and weight.shape[-1] % 144 == 0
    assert refsd.golden("layer_norm/f32/plain-x2x77x64").params["eps"] > 0


@pytest.fixture
def unexplained(monkeypatch):
    """No time for causes, of which there are none to find."""
    monkeypatch.setattr("refsd.judges.model._SEARCH", 0.0)


@pytest.mark.usefixtures("unexplained")
@pytest.mark.parametrize("name", [SILU, "stage/noising/flow-sdcpp", TAE])
def test_the_bound_is_where_an_element_fails(name):
    """An error of one element just inside the bound fails by no element, one just outside does.

    A model's answer that is outside by little is judged by more honest runs than the one that gave the bound.
    """
    case = refsd.golden(name)
    outside = 17 if name == TAE else 1.02
    for output, bound in case.bound.items():
        assert bound.shape == case.truth[output].shape
        flat = np.argmin(np.where(bound > 0, np.abs(np.log2(bound) + 20), np.inf))
        at = np.unravel_index(flat, bound.shape)
        for factor, wrong in ((0.99, False), (outside, True)):
            y = {key: np.array(t) for key, t in case.truth.items()}
            y[output][at] += factor * bound[at]
            verdict = refsd.judge(name, y)
            assert (f"{outside} times what is allowed" in verdict.reason) == wrong, verdict.reason


def test_a_tighter_profile_has_a_tighter_bound():
    one, half = (refsd.golden(SILU, numerics) for numerics in ("float32", "torch-f16"))
    assert half.bound["y"].mean() > 100 * one.bound["y"].mean()


def test_a_wrong_answer_is_placed_and_explained():
    x = refsd.golden(SILU).inputs["x"]
    wrong = refsd.judge(SILU, {"y": x / (1 + np.exp(-1.702 * x))})
    assert not wrong and wrong.verdict == "fail" and wrong.place == "y" and wrong.margin > 1
    assert wrong.cause == "x sigmoid(1.702 x)" and wrong.causes[0] == wrong.cause
    assert str(wrong).splitlines()[0] == f"FAIL  {SILU} under float32, at y"
    with pytest.raises(AssertionError, match=r"the reference agrees if x sigmoid"):
        refsd.assert_conforms(SILU, x / (1 + np.exp(-1.702 * x)))


def test_shapes_and_nan_are_one_clear_line():
    x = refsd.golden(SILU).inputs["x"]
    assert "has shape [77, 33], expected [33, 77]" in refsd.judge(SILU, silu(x).T).reason
    y = silu(x)
    y[3, 7] = np.nan
    assert "not finite where the truth is, first at [3, 7]" in refsd.judge(SILU, y).reason


@pytest.mark.jitted
@pytest.mark.usefixtures("unexplained")
def test_taps_are_judged_where_the_error_arises():
    case = refsd.golden(TAE, "float32")
    assert case.weights is not None and case.weights.exists()
    y = refsd.forward(case.weights, "tae-decoder", numerics="float32", taps="*", **case.inputs)
    assert refsd.judge(TAE, y, taps=y.taps).passed
    place = list(y.taps)[4]
    y.taps[place] = y.taps[place] * 1.5
    wrong = refsd.judge(TAE, y, taps=y.taps)
    assert wrong.place == place and not wrong.passed
    assert refsd.judge(TAE, None, taps=y.taps).place == place


def test_forward_of_a_recipe_is_forward_of_its_file(tmp_path):
    z = np.linspace(-2, 2, 256, dtype=np.float32).reshape(1, 4, 8, 8)
    by_name = refsd.forward("recipe:taesd:tiny", "tae-decoder", z=z)
    by_recipe = refsd.forward(ModelRecipe("taesd", tiny=True), "tae-decoder", z=z)
    assert by_name["out"].dtype == np.float64 and not by_name.taps
    assert np.array_equal(by_name["out"], by_recipe["out"])


def test_parameters_of_a_component_are_given_beside_its_inputs():
    ids = np.arange(77)[None]
    skipped = refsd.forward("recipe:clip-l:tiny", "clip_l", input_ids=ids, clip_skip=2)
    last = refsd.forward("recipe:clip-l:tiny", "clip_l", input_ids=ids, clip_skip=1)
    assert not np.array_equal(skipped["last_hidden_state"], last["last_hidden_state"])


def test_mistakes_are_one_line():
    x = np.zeros((33, 77), np.float32)
    for call, text in (
        (lambda: refsd.golden("silu/f32/bend"), 'did you mean "silu/f32/bend-x33x77"'),
        (lambda: refsd.golden(SILU, "float23"), 'did you mean "float32"'),
        (lambda: refsd.judge(SILU, {"z": x}), "has no output 'z'; it has y"),
        (lambda: refsd.judge(SILU, {}), "no array given"),
        (lambda: refsd.judge(SILU, x.astype(complex)), "dtype complex128, expected floats or integers"),
        (lambda: refsd.judge(SILU, [[1], [1, 2]]), "not an array"),
        (lambda: refsd.judge("stage/noising/flow-sdcpp", x), "give a mapping of names to arrays"),
        (lambda: refsd.judge("stage/noising/flow-sdcpp", {"noise": x}, "torch-f16"), "no stage is computed in"),
        (lambda: refsd.forward("recipe:taesd:f16:q8_0:tiny", "tae-decoder"), "expected recipe:FAMILY"),
        (lambda: refsd.forward("recipe:taesd:tiny", "tae_decoder"), 'did you mean "tae-decoder"'),
    ):
        with pytest.raises(BadInput) as raised:
            call()
        assert text in str(raised.value) and "\n" not in str(raised.value)


def test_half_precision_is_judged_as_it_comes():
    y = silu(refsd.golden(SILU).inputs["x"].astype(np.float64))
    assert refsd.judge(SILU, y.astype(np.float16), "torch-f16")
    assert refsd.judge(SILU, y.astype(ml_dtypes.bfloat16), "torch-bf16")
    assert not refsd.judge(SILU, y.astype(ml_dtypes.bfloat16), "torch-f16")


def test_judges_load_no_scipy_before_a_search():
    """Its functions take longer to load than the first verdict to make."""
    script = "import sys, refsd.judges; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True)
    assert not {"scipy.special", "scipy.optimize"} & {*done.stdout.split()}


def test_taps_are_a_glob():
    with pytest.raises(BadInput, match=r"taps True: a glob of blocks expected"):
        refsd.forward("recipe:taesd:tiny", "tae-decoder", z=np.zeros((1, 4, 8, 8)), taps=True)


def test_watch_says_that_it_needs_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "refsd.watching.mode", raising=False)
    with pytest.raises(BadInput, match="needs torch: in refsd's clone: uv sync --extra torch"), refsd.watch():
        pass
