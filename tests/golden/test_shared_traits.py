"""What failing cases share: engines that fail by a rule, and the rule found again."""

import pytest

from refsd.cases import CASES
from refsd.golden import verdict
from refsd.golden.case import Case, ModelRecipe
from refsd.golden.recipe import Recipe
from refsd.golden.report import Result
from refsd.golden.shared_traits import features, shared_traits


def _results(op, fails, status=verdict.FAIL):
    cases = {name: case for name, case in CASES.items() if case.op == op}
    return [Result("e", name, op, status if fails(c) else verdict.PASS) for name, c in cases.items()], cases


def _x(case, name="x"):
    return case.inputs[name].shape


@pytest.mark.parametrize(
    ("op", "fails", "trait"),
    [
        ("attention", lambda c: _x(c, "q")[2] > _x(c, "k")[2], "H / G > 1 (q is [B, L, H, D], k is [B, J, G, D])"),
        ("attention", lambda c: "mask" in c.inputs, "mask"),
        ("attention", lambda c: "mask" not in c.inputs, "no mask"),
        ("attention", lambda c: _x(c, "q")[0] > 1, "B > 1 (q is [B, L, H, D])"),
        ("attention", lambda c: c.params.get("causal", False), "causal = True"),
        ("conv2d", lambda c: c.params.get("groups", 1) > 1, "groups > 1"),
        (
            "conv2d",
            lambda c: _x(c)[1] // c.params.get("groups", 1) % 4 != 0,
            "C / groups % 4 != 0 (x is [N, C, H, W])",
        ),
        ("conv2d", lambda c: c.inputs["weight"].type == "f16", "type of weight = f16"),
        ("linear", lambda c: _x(c)[-1] % 32 != 0, "K % 8 != 0 (as well as % 16, 32) (x is [..., K])"),
        ("group_norm", lambda c: _x(c)[1] > 64, "C >= 96 (passing: at most 64) (x is [N, C, H, W])"),
    ],
)
def test_the_rule_is_found(op, fails, trait):
    results, cases = _results(op, fails)
    bad = sum(r.status == verdict.FAIL for r in results)
    how = f"all {bad} failing cases, and none of {len(results) - bad} passing, have {trait}"
    assert shared_traits(results, cases) == [f"e {op}: {how}"]


def _made(shapes, fails, **params):
    """Results of made-up convolutions."""
    cases, results = {}, []
    for i, (shape, bad) in enumerate(zip(shapes, fails, strict=True)):
        case = Case(f"c{i}", "upsample_nearest", {"x": Recipe(shape)}, params)
        cases[case.name] = case
        results.append(Result("e", case.name, case.op, verdict.FAIL if bad else verdict.PASS))
    return shared_traits(results, cases)


def test_a_third_parameter_is_no_less_likely():
    """Two cases that differ from all others in three parameters: none of the three is left out."""
    tensors = {"x": Recipe((1, 4, 9, 9)), "weight": Recipe((5, 4, 3, 3))}
    odd = {"stride": (1, 2), "padding": (2, 2, 0, 1), "dilation": (2, 1)}
    cases = {f"{i}": Case(f"{i}", "conv2d", tensors, odd if i < 2 else {}) for i in range(5)}
    results = [Result("e", name, "conv2d", verdict.FAIL if int(name) < 2 else verdict.PASS) for name in cases]
    (line,) = shared_traits(results, cases)
    assert "stride = (1, 2), and also padding = (2, 2, 0, 1), and also dilation = (2, 1)" in line


def test_sides_and_dimensions_of_one():
    flags = (True, True, False, False, False)
    shapes = ((1, 4, 8, 9), (2, 7, 5, 6), (1, 5, 8, 8), (2, 4, 6, 6), (3, 7, 5, 5))
    assert "have H != W (x is [N, C, H, W])" in _made(shapes, flags)[0]
    shapes = ((1, 1, 8, 9), (2, 1, 5, 6), (1, 5, 8, 9), (2, 4, 5, 7), (3, 7, 5, 6))
    assert "have C = 1 (x is [N, C, H, W])" in _made(shapes, flags)[0]


def test_blocks_that_fit_as_well_are_named():
    shapes = ((1, 33, 8, 9), (2, 77, 5, 6), (1, 64, 8, 9), (2, 128, 5, 6), (3, 192, 7, 3))
    (line,) = _made(shapes, (True, True, False, False, False))
    assert "have C % 2 != 0 (as well as % 4, 8, 16, 32, 64) (x is [N, C, H, W])" in line


def test_a_model_s_family():
    cases = {
        f"c{i}": Case(f"c{i}", "model/unet", {"x": Recipe((1, 4, 8, 8))}, {}, ModelRecipe(family, tiny=True))
        for i, family in enumerate(["sd21", "sd21", "sd15", "sd15", "sdxl"])
    }
    results = [
        Result("e", name, c.op, verdict.FAIL if c.model.family == "sd21" else verdict.PASS)
        for name, c in cases.items()
    ]
    (line,) = shared_traits(results, cases)
    assert line.endswith("have family = sd21")


def test_too_few_cases_share_nothing():
    def few(failing, passing):
        results, cases = _results("attention", lambda c: _x(c, "q")[0] > 1)
        bad = [r for r in results if r.status == verdict.FAIL][:failing]
        good = [r for r in results if r.status == verdict.PASS][:passing]
        return shared_traits(bad + good, cases)

    assert few(2, 3) != []
    assert few(1, 8) == few(8, 2) == few(0, 8) == few(8, 0) == []


def test_what_did_not_fail_by_itself_counts_for_nothing():
    for status in (verdict.REFUSED, verdict.WAIVED, verdict.DEVIATES, verdict.ERROR):
        results, cases = _results("attention", lambda c: _x(c, "q")[0] > 1, status)
        assert shared_traits(results, cases) == []


def test_cases_that_share_nothing():
    bad = ("attention/f32/self-b2-l35-j35-h2-d40", "attention/f32/wide-b1-l16-j132-h1-d128")
    results, cases = _results("attention", lambda c: c.name in bad)
    assert sum(r.status == verdict.FAIL for r in results) == 2
    assert shared_traits(results, cases) == []


def test_each_engine_and_operation_has_its_own_line():
    one, cases = _results("attention", lambda c: "mask" in c.inputs)
    two, more = _results("conv2d", lambda c: c.params.get("groups", 1) > 1)
    other = [Result("f", r.case, r.op, verdict.PASS) for r in one]
    lines = shared_traits([*one, *two, *other], cases | more)
    assert [line.split(":")[0] for line in lines] == ["e attention", "e conv2d"]


def test_parameters_may_be_lists_of_tables():
    assert features(CASES["stage/requests/and-back"]).sides["unequal requests"]


def test_a_remainder_by_no_power_of_two_is_chance_where_another_trait_tells():
    """Failing cases have no K that 3 divides, and passing ones have, as it happens; they fail by N > 1."""
    shapes = {"a": (2, 20), "b": (5, 10), "c": (1, 33), "d": (1, 9), "e": (1, 12)}
    cases = {n: Case(n, "relu", {"x": Recipe(shape)}) for n, shape in shapes.items()}
    results = [Result("e", n, "relu", verdict.FAIL if n in "ab" else verdict.PASS) for n in cases]
    (line,) = shared_traits(results, cases)
    assert "> 1" in line and "% 3" not in line
