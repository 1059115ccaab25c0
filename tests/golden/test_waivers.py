"""Waivers: who gets one, until when, and what is no waiver."""

import ast
import datetime

import msgspec
import pytest

from refsd.golden.explanation import Nearest
from refsd.golden.report import Result
from refsd.golden.verdict import DEVIATES, ERROR, FAIL
from refsd.golden.waivers import Waiver, applicable, apply, read, waive, without_cases
from refsd.numerics.errors import BadInput

_DAY = datetime.date(2027, 3, 31)
_WAIVER = Waiver("sdcpp/gelu-tanh", "issue 7", _DAY, engine="sdcpp*", cases="model/*")


def _apply(names=("sdcpp/gelu-tanh",), engine="sdcpp", case="model/unet", today=_DAY):
    return apply([_WAIVER], names, engine, case, today)


def test_a_waiver_lasts_through_its_last_day():
    assert _apply() == (True, "sdcpp/gelu-tanh waived until 2027-03-31: issue 7")
    waived, said = _apply(today=_DAY + datetime.timedelta(1))
    assert not waived
    assert said == "the waiver of sdcpp/gelu-tanh expired on 2027-03-31"


@pytest.mark.parametrize("other", [{"engine": "ggml"}, {"case": "conv2d/f32"}, {"names": ("sdcpp/other",)}])
def test_a_waiver_covers_what_it_says(other):
    assert _apply(**other) == (False, "")


def test_every_deviation_needs_one():
    assert not _apply(names=("sdcpp/gelu-tanh", "sdcpp/group-norm-eps"))[0]
    assert not _apply(names=())[0]


def _waive(engine="ggml", case="layer_norm/f32/a", causes=("eps ten times too small",), today=_DAY, **fields):
    waiver = Waiver("", "issue 8", _DAY, "ggml*", "layer_norm/*")
    return waive([_WAIVER, msgspec.structs.replace(waiver, **fields)], _failed(engine, case, causes), today)


def _failed(engine="ggml", case="layer_norm/f32/a", causes=(), status=FAIL, **fields):
    return Result(engine, case, "layer_norm", status, criterion="gain", causes=tuple(causes), **fields)


def test_a_waiver_without_a_name_covers_whatever_is_wrong_with_its_cases():
    assert _waive() == _waive(causes=()) == (True, "the case waived until 2027-03-31: issue 8")
    assert _waive(today=_DAY + datetime.timedelta(1)) == (False, "the waiver of the case expired on 2027-03-31")
    assert _waive(engine="torch") == _waive(case="rms_norm/f32/a") == (False, "")
    assert not waive([_WAIVER], _failed("sdcpp", "model/unet"), _DAY)[0]


def test_a_waiver_of_a_cause_covers_no_other():
    assert _waive(cause="eps *")[0]
    assert _waive(cause="eps *", causes=("axis", "eps is missing"))[0]
    said = 'the waiver of cause "eps *" does not hold: the causes found are "tanh for erf"'
    assert _waive(cause="eps *", causes=("tanh for erf",)) == (False, said)
    assert not _waive(cause="eps *", causes=("tanh for erf",))[0]


def test_a_waiver_of_a_cause_that_was_not_found_says_what_to_do():
    waived, said = _waive(cause="eps *", causes=())
    assert not waived
    assert said == (
        'the waiver of cause "eps *" does not hold: no cause was found here: leave `cause` out, or name the case, '
        "or set it to 'layer_norm: unexplained (gain)*'"
    )


@pytest.mark.parametrize("cause", ["layer_norm: unexplained*", "layer_norm: unexplained (gain)"])
def test_a_waiver_may_name_a_failure_without_a_cause_by_its_title_in_the_report(cause):
    assert _waive(cause=cause, causes=())[0]
    assert not _waive(cause=cause)[0]


def test_a_glob_of_a_cause_does_not_match_the_nearest_bug_in_a_title():
    waiver = Waiver("", "issue 8", _DAY, cases="layer_norm/*", cause="*eps*")
    near = _failed(nearest=Nearest("eps ten times too small", 1.0, 0.9))
    assert "eps" in near.title and not waive([waiver], near, _DAY)[0]
    assert waive([waiver], _failed(causes=("eps is missing",)), _DAY)[0]


def test_the_advised_cause_holds_also_for_a_title_with_a_shape_and_after_the_waiver_is_named():
    shape = "output 'y' has shape [77, 33], expected [33, 77]"
    failed = msgspec.structs.replace(_failed(), criterion="output", reason=shape)
    waiver = Waiver("", "issue 8", _DAY, cases="layer_norm/*", cause="eps *")
    said = waive([waiver], failed, _DAY)[1]
    cause = ast.literal_eval(said.partition("set it to ")[2])
    for one in (cause, f"layer_norm: {shape}"):
        named = msgspec.structs.replace(waiver, cause=one)
        waived, line = waive([named], failed, _DAY)
        assert waived and waive([named], msgspec.structs.replace(failed, reason=f"{shape}; {line}"), _DAY)[0]
    other = msgspec.structs.replace(failed, reason="output 'y' has shape [7], expected [33, 77]")
    assert not waive([msgspec.structs.replace(waiver, cause=cause)], other, _DAY)[0]


@pytest.mark.parametrize("status", [ERROR, DEVIATES])
def test_a_waiver_of_an_unexplained_error_covers_no_crash_and_no_deviation(status):
    waiver = Waiver("", "issue 8", _DAY, cases="layer_norm/*", cause="layer_norm: unexplained*")
    waived, said = waive([waiver], _failed(status=status), _DAY)
    assert not waived and said.endswith("does not hold: no cause was found here: leave `cause` out")
    assert waive([msgspec.structs.replace(waiver, cause="*")], _failed(status=status), _DAY)[0]


def test_a_waiver_holds_where_the_search_for_the_cause_was_cut():
    waiver = Waiver("", "issue 8", _DAY, cases="layer_norm/*", cause="eps *")
    cut = _failed(cut="the search for a cause was cut after 24 s")
    waived, said = waive([waiver], cut, _DAY)
    assert waived and said.endswith(f"issue 8 (its cause is not known: {cut.cut})")
    assert not waive([waiver], cut, _DAY + datetime.timedelta(1))[0]
    assert not waive([waiver], msgspec.structs.replace(cut, causes=("tanh for erf",)), _DAY)[0]


def test_a_waiver_of_a_cpu_feature_holds_on_no_other_machine():
    amx, everywhere = msgspec.structs.replace(_WAIVER, when="amx_bf16"), _WAIVER
    assert applicable([amx, everywhere], {"avx2"}) == [everywhere]
    assert applicable([amx, everywhere], {"avx2", "amx_bf16"}) == [amx, everywhere]


def test_a_file_of_waivers(tmp_path):
    path = tmp_path / "w.toml"
    path.write_text('[[waiver]]\nname = "sdcpp/gelu-tanh"\nreason = "issue 7"\nexpires = 2027-03-31\n')
    assert read(path) == [Waiver("sdcpp/gelu-tanh", "issue 7", _DAY)]
    path.write_text('[[waiver]]\ncases = "layer_norm/*"\nreason = "x"\nexpires = 2027-03-31\ncause = "eps*"\n')
    assert read(path) == [Waiver("", "x", _DAY, cases="layer_norm/*", cause="eps*")]


@pytest.mark.parametrize(
    "text",
    [
        "[[waiver]]",
        "waiver = 3",
        "not toml",
        '[[waiver]]\nname = "sdcpp/gelu-tanh"\nreason = "x"',
        '[[waiver]]\nname = "sdcpp/gelu-tanh"\nreason = "x"\nexpires = "soon"',
        '[[waiver]]\nname = "sdcpp/gelu-tanh"\nreason = " "\nexpires = 2027-03-31',
        '[[waiver]]\nname = "nobody/knows"\nreason = "x"\nexpires = 2027-03-31',
        '[[waiver]]\nname = "sdcpp/gelu-tanh"\nreason = "x"\nexpires = 2027-03-31\ntypo = 1',
        '[[waiver]]\nreason = "x"\nexpires = 2027-03-31',
        '[[waiver]]\nreason = "x"\nexpires = 2027-03-31\nengine = "ggml"',
        '[[waiver]]\ncases = "silu/*"\nreason = "x"',
        '[[waiver]]\ncases = "silu/*"\nexpires = 2027-03-31',
        '[[waiver]]\nname = "sdcpp/gelu-tanh"\nreason = "x"\nexpires = 2027-03-31\ncause = "eps"',
        '[[waiver]]\ncases = "silu/*"\nreason = "x"\nexpires = 2027-03-31\nwhen = "amx-bf16"',
    ],
)
def test_what_is_no_waiver_is_said_in_one_line(tmp_path, text):
    path = tmp_path / "w.toml"
    path.write_text(text)
    with pytest.raises(BadInput) as error:
        read(path)
    assert "\n" not in str(error.value)
    assert "w.toml" in str(error.value)


def test_a_missing_or_binary_file(tmp_path):
    with pytest.raises(BadInput):
        read(tmp_path / "none.toml")
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput):
        read(tmp_path / "b.toml")


def test_a_waiver_that_covers_no_case_of_a_run_is_told_with_what_was_meant():
    run = [_failed(case="conv2d/f32/a"), _failed(case="silu/f32/a")]
    waivers = [Waiver("", "x", _DAY, cases="conv_2d/*"), Waiver("", "x", _DAY, "gml*", "silu/*")]
    waivers += [Waiver("", "x", _DAY, "gg*", "silu/*"), Waiver("sdcpp/gelu-tanh", "x", _DAY)]
    waivers += [Waiver("", "x", _DAY, "onnxruntime", "silu/*")]
    assert without_cases(waivers, run) == [
        'the waiver of conv_2d/* matched no case (did you mean "conv2d/*"?)',
        'the waiver of silu/* of engine gml* matched no case (did you mean "ggml"?)',
    ]


def test_a_day_in_quotes_is_told_how_to_be_written(tmp_path):
    path = tmp_path / "w.toml"
    path.write_text('[[waiver]]\ncases = "a/*"\nreason = "x"\nexpires = "31.3.2027"\n')
    with pytest.raises(BadInput, match="write expires = 2027-03-31, without quotes"):
        read(path)
