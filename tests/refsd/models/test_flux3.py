"""FLUX.3's transformer against answers recorded from diffusers in float64, and what must hold besides."""

from pathlib import Path

import numpy as np
import pytest
import tiny_flux3 as tiny
from tiny_models import sampled

from refsd.components import COMPONENTS
from refsd.components.checks import check
from refsd.models.flux3 import flux3, picture_ids
from refsd.module import Module, Taps
from refsd.numerics.errors import BadInput

pytestmark = pytest.mark.jitted

RECORDED = np.load(Path(__file__).parents[2] / "fixtures" / "flux3.npz")
AXES = [*tiny.AXES]


def run(model, references=0, **changed):
    m = Module(tiny.weights(model), taps=changed.pop("taps", None))
    given = {name: m.store(x) for name, x in (tiny.inputs(model, references) | changed).items()}
    return COMPONENTS["flux3"].run(m, **given, axes_dim=AXES)


def distance(got, want):
    return np.linalg.norm(got - want) / np.linalg.norm(want)


@pytest.mark.parametrize("answer", [f"{model}/{n}" for model in tiny.SIZES for n in range(3)])
def test_the_recorded_answers_of_diffusers(answer):
    model, _, references = answer.partition("/")
    y = run(model, int(references))
    assert y.shape == tiny.inputs(model)["x"].shape
    assert distance(sampled(y), RECORDED[answer]) <= 1e-12
    assert RECORDED.files == ["about", *(f"{model}/{n}" for model in tiny.SIZES for n in range(3))]


def test_positions():
    """Neighbours are half a step apart; a reference stands before the words."""
    assert picture_ids(np.zeros((1, 1, 2, 3))).tolist() == [
        [0, row, column, 0] for row in (0, 0.5) for column in (0, 0.5, 1)
    ]
    assert picture_ids(np.zeros((1, 1, 1, 2)), -2).tolist() == [[0, 0, 0, -2], [0, 0, 0.5, -2]]


def test_modes_meet_in_the_joint_blocks_only():
    """No mode's own blocks see the time of the picture, or another mode's tokens."""
    before, after = Taps(), Taps()
    run("base", 1, taps=before)
    changed = tiny.inputs("base", 1)
    run("base", 1, taps=after, x=changed["x"][::-1].copy(), timesteps=changed["timesteps"] / 2)
    own = [name for name in before if name.startswith(("txt_mode_blocks.", "content_mode_blocks.image_cond."))]
    assert len(own) == 4
    for name in own:
        np.testing.assert_array_equal(before[name], after[name], name)
    assert not np.allclose(before["single_blocks.0.0"], after["single_blocks.0.0"])


def test_the_time_that_a_step_jumps_to_reaches_every_mode():
    before, after = Taps(), Taps()
    run("distilled", 1, taps=before)
    run("distilled", 1, taps=after, target_timesteps=np.array([0.25, 0.125]))
    own = [
        f"{stack}.0" for stack in ("txt_mode_blocks", "content_mode_blocks.image", "content_mode_blocks.image_cond")
    ]
    for name in own:
        assert not np.allclose(before[name], after[name]), name


@pytest.mark.parametrize(
    ("model", "changed", "match"),
    [
        ("base", {"target_timesteps": np.zeros(2)}, "target_timesteps .*of no use: only the distilled model"),
        ("distilled", {"target_timesteps": None}, "target_timesteps .*needed: the weights embed the time"),
        ("base", {"x": np.zeros((2, 11, 3, 5))}, "C is 11, the model takes 12"),
        ("base", {"context": np.zeros((2, 7, 21))}, "E is 21, the model takes 22"),
        ("base", {"timesteps": np.zeros(3)}, "N is 3 here and 2"),
    ],
)
def test_what_does_not_fit_is_refused(model, changed, match):
    given = {name: x for name, x in (tiny.inputs(model) | changed).items() if x is not None}
    with pytest.raises(BadInput, match=match) as error:
        check("flux3", COMPONENTS["flux3"], Module(tiny.weights(model)), given, {"axes_dim": AXES}, "inputs")
    assert "\n" not in str(error.value)


def test_a_call_without_the_time_that_it_jumps_to_is_refused():
    given = tiny.inputs("distilled")
    with pytest.raises(BadInput, match="give target_timesteps"):
        flux3(Module(tiny.weights("distilled")), given["x"], given["timesteps"], given["context"], axes_dim=AXES)
