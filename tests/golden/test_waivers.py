"""Waivers: who gets one, until when, and what is no waiver."""

import datetime

import pytest

from refsd.golden.waivers import Waiver, apply, read
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


def test_a_file_of_waivers(tmp_path):
    path = tmp_path / "w.toml"
    path.write_text('[[waiver]]\nname = "sdcpp/gelu-tanh"\nreason = "issue 7"\nexpires = 2027-03-31\n')
    assert read(path) == [Waiver("sdcpp/gelu-tanh", "issue 7", _DAY)]


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
