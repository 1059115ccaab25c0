"""Pictures of errors: a single wrong element is seen, and nothing that an engine answers breaks them."""

import io

import numpy as np
import pytest
from PIL import Image

from refsd.golden.case import Case
from refsd.golden.conform import Answered
from refsd.golden.examination import Examination
from refsd.golden.judge import Standard, Trace
from refsd.golden.metrics import measure
from refsd.numerics.profiles import FLOAT32
from refsd.reports.pictures import Pictures, draw

_ZERO = np.zeros((2, 4, 500, 300))


def _pixels(picture):
    assert picture.png[:4] == b"\x89PNG" and max(picture.width, picture.height) <= 96
    return np.asarray(Image.open(io.BytesIO(picture.png)).convert("L"))


def test_one_wrong_element_of_many_is_the_only_dark_spot():
    truth = np.ones(_ZERO.shape)
    found = truth.copy()
    found[1, 2, 250, 150] += 1
    (picture,) = draw("y", found, truth, truth * (1 + 1e-7), False)
    pixels = _pixels(picture)
    assert (pixels < 255).sum() == 1 and pixels.min() < 40
    assert np.argwhere(pixels < 255)[0].tolist() == [250 // 6, 150 // 4]
    assert picture.caption.startswith("y [2x4x500x300]: mean error, white up to ")


def test_the_mean_is_over_all_but_the_last_two_axes():
    truth = np.ones((2, 3, 4, 5))
    found = truth + np.arange(20.0).reshape(4, 5)
    (picture,) = draw("y", found, truth, truth, False)
    pixels = _pixels(picture).astype(int)
    assert pixels.shape == (4, 5) and pixels[0, 0] == 255 and (np.diff(pixels.ravel()) <= 0).all()


def test_a_picture_is_shown_as_one():
    truth = np.zeros((1, 3, 8, 8)) - 1
    truth[0, 0, :, 4:] = 1
    _, found, wanted = draw("image", -truth, truth, truth, True)
    assert [picture.caption for picture in (found, wanted)] == ["the engine's", "the reference's"]
    colours = np.asarray(Image.open(io.BytesIO(wanted.png)))
    assert colours[0, 0].tolist() == [0, 0, 0] and colours[0, 7].tolist() == [255, 0, 0]
    assert len(draw("image", -truth, truth, truth, False)) == 1
    assert len(draw("latent", np.zeros((1, 4, 8, 8)), np.ones((1, 4, 8, 8)), np.ones((1, 4, 8, 8)), True)) == 1


@pytest.mark.parametrize(
    ("found", "truth"),
    [
        (np.full((3, 4), np.nan), np.ones((3, 4))),
        (np.full((3, 4), np.inf), np.full((3, 4), -np.inf)),
        (np.full((3, 4), 1e308), np.full((3, 4), -1e308)),
        (np.zeros(7), np.ones(7)),
        (np.zeros((1, 3, 1, 1)), np.zeros((1, 3, 1, 1))),
        (np.ones((2, 3), np.int64), np.zeros((2, 3))),
        (np.ones((100, 1)), np.zeros((100, 1))),
    ],
)
def test_any_answer_can_be_drawn(found, truth):
    for picture in draw("y", found, truth, truth, True):
        _pixels(picture)


def test_what_has_no_elements_or_no_axes_has_no_picture():
    assert draw("y", np.float64(1), np.float64(2), np.float64(2), False) == []
    assert draw("y", *[np.zeros((0, 3))] * 3, False) == []


def test_the_first_wrong_tap_is_drawn_before_the_output():
    """An engine's tap may have its axes joined; it is drawn in the reference's shape."""
    truth = np.arange(1.0, 61).reshape(3, 4, 5)
    honest, found = truth * (1 + 1e-7), truth.copy()
    found[:, 2, 3] *= 1.5
    standard = Standard(Case("x", "model/x", {}), {}, {"y": truth}, {"y": honest}, FLOAT32)
    trace = Trace(first={"block.norm": (truth, honest)})
    examined = Examination(trace, [measure("y", found, truth, honest, None, -1)])
    answered = Answered("e", standard, {"y": found}, {"block.norm": found.reshape(12, 5)}, examined)
    pictures = Pictures()
    pictures.add(type("Result", (), {"engine": "e", "case": "x"})(), answered)
    tap, output = pictures.of["e", "x"]
    assert tap.caption.startswith("block.norm [3x4x5]: ") and output.caption.startswith("y [3x4x5]: ")
    assert np.argwhere(_pixels(tap) < 255).tolist() == [[2, 3]]
