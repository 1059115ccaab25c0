"""Caches: their rules against second opinions, their options, and a picture's way through each."""

import json

import numpy as np
import pytest
from naive import caches as naive

from refsd.caches import CACHES, read_cache
from refsd.caches.magcache import nearest
from refsd.cli import main
from refsd.golden.case import ModelRecipe
from refsd.judges.stage import StageJudge
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64
from refsd.stages import STAGES
from refsd.weights import recipes

CASES = {case.name.rsplit("/")[-1]: case for case in STAGES["stage/caches"].cases}


def _states(case):
    """-> name -> [S, ...] of each tensor, and the parameters"""
    t = {name: tensor.values().astype(np.float64) for name, tensor in case.realize().items()}
    p = StageJudge().complete(case, case.realize())
    along = lambda name: np.stack([t[name] + share * t[f"{name}_way"] for share in p["path"]])
    return {name: along(name) for name in t if not name.endswith("_way")}, p


def _second_opinion(cache, t, p, options):
    xs, conditions = t["x"], {name: t[name] for name in ("cond", "uncond") if name in t}
    if cache in ("easycache", "ucache"):
        return naive.sdcpp(cache, xs, conditions, p["sigmas"], **options)
    if cache == "dbcache":
        return naive.dbcache(xs, conditions, p["sigmas"], **options)
    one = {
        "first-block": lambda ends: naive.first_block(xs, xs + t["head"], ends, **options),
        "taylorseer": lambda ends: naive.taylor(ends, **options),
        "magcache": lambda ends: naive.magcache(xs, ends, **options),
        "teacache": lambda ends: naive.teacache(xs, t["head"], ends, **options),
    }[cache]
    pairs = {name: one(ends) for name, ends in conditions.items()}
    return {name: reused for name, (reused, _) in pairs.items()}, {name: out for name, (_, out) in pairs.items()}


@pytest.mark.parametrize("label", CASES)
def test_each_step_is_that_of_a_second_opinion(label):
    case = CASES[label]
    found = StageJudge().answer(case, case.realize(), Arithmetic(FLOAT64))
    t, p = _states(case)
    reused, out = _second_opinion(p["cache"], t, p, p["options"])
    for name in reused:
        assert found[f"{name}_reused"].tolist() == reused[name] * p["pictures"]
        np.testing.assert_allclose(
            found[f"{name}_out"], np.array(out[name] * p["pictures"]), rtol=1e-12, atol=1e-12
        )
        assert 0 < sum(reused[name]) < len(reused[name])


def test_the_options_of_each_cache_are_its_parameters():
    for name, kind in CACHES.items():
        settings = read_cache("--cache-mode", name, "")
        assert settings.options == {option: limits.default for option, limits in kind.options.items()}
        assert str(settings).startswith(f"{name}:")


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("easy", "", "expected one of easycache, ucache"),
        ("easycache", "thresh=1", "option 'thresh' is unknown: expected one of threshold, start, end"),
        ("easycache", "threshold=", "threshold=: expected a number 0 to 100"),
        ("easycache", "threshold=nan", "expected a number 0 to 100"),
        ("easycache", "start=0.5,end=0.5", "start=0.5 and end=0.5: expected start below end"),
        ("taylorseer", "order=1.5", "order=1.5: expected a whole number 0 to 8"),
        ("taylorseer", "before=0", "expected a whole number 1 to 1000"),
        ("magcache", "ratios=1/x", "expected numbers with / between them, each 0 to 1000"),
        ("teacache", "threshold=1/2", "expected a number 0 to 100"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line(name, options, says):
    with pytest.raises(BadInput) as refused:
        read_cache("--cache-mode", name, options)
    assert says in str(refused.value) and "\n" not in str(refused.value)


def test_a_table_is_read_at_its_nearest_entries():
    assert nearest((1.0, 2.0, 3.0), 3) == [1, 2, 3]
    assert nearest((1.0, 2.0, 3.0), 5) == [1, 1, 2, 3, 3]  # halves to even, as torch.round
    assert nearest((1.0, 2.0, 3.0), 1) == [3]


@pytest.fixture
def run(monkeypatch, capsys):
    """Run refsd -> exit code, stdout, stderr"""

    def ran(*arguments):
        monkeypatch.setattr("sys.argv", ["refsd", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code or 0, *capsys.readouterr()

    return ran


@pytest.fixture(scope="module")
def flux(tmp_path_factory):
    return recipes.make(ModelRecipe("flux-dev", "f32", True), tmp_path_factory.mktemp("m") / "flux.safetensors")


# Of random weights, whose outputs move fast, with thresholds that reuse some steps and compute others.
FOR_RANDOM_WEIGHTS = {
    "easycache": "threshold=9",
    "ucache": "",
    "dbcache": "threshold=0.3",
    "first-block": "threshold=1.1",
    "taylorseer": "",
    "teacache": "threshold=90",
    "magcache": "",
}


def test_quality_tells_each_caches_drift(flux, run):
    chosen = [f"--cache={name}:{options}" for name, options in FOR_RANDOM_WEIGHTS.items()]
    code, out, _ = run("quality", flux, "--steps", 8, "--json", *chosen)
    rows = json.loads(out)
    assert code == 0 and [row["cache"].partition(":")[0] for row in rows] == [*FOR_RANDOM_WEIGHTS]
    for row in rows:
        assert 0 < len(row["reused"]) < 8 and 0 not in row["reused"], row
        assert len(row["drift"]) == 8
        first = row["reused"][0]
        # A latent moves away in the step that is reused, and not before.
        assert not any(row["drift"][:first]) and all(drift > 1e-3 for drift in row["drift"][first:]), row


def test_a_cache_that_reuses_nothing_changes_nothing(flux, run):
    _, out, _ = run("quality", flux, "--steps", 4, "--json", "--cache", "easycache:threshold=0")
    (row,) = json.loads(out)
    assert row["reused"] == [] and not any(row["drift"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--cache", "nothing"], "--cache nothing: expected one of"),
        (["--cache", "easycache", "--steps", 0], "--steps is 0"),
    ],
)
def test_quality_refuses(flux, run, arguments, says):
    code, _, err = run("quality", flux, *arguments)
    assert code == 2 and says in err and "Traceback" not in err
