"""What explains a wrong tap: other slices as its input, another size, another call, a number of the component."""

import itertools

import numpy as np
import pytest

from refsd.cases import CASES
from refsd.causes.model.following import Segment, of_one_layer
from refsd.causes.model.mutants import MUTANTS, Change
from refsd.causes.model.observed import call_of
from refsd.causes.model.parts import slices
from refsd.causes.model.place import Place
from refsd.golden.judge import Standard
from refsd.judges.model import ModelJudge
from refsd.kernels.attention_softcap import attention_softcap
from refsd.models import lumina2, qwen_vision
from refsd.module import Taps
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT32, FLOAT64
from refsd.weights.model_files import model_files


def test_one_slice_of_a_longer_tensor_may_stand_for_it():
    y = np.arange(24.0).reshape(2, 4, 3)
    one = dict(slices(y, (2, 3)))
    assert [*one] == [f"slice {i} of 4 along axis 1 of " for i in (1, 2, 3, 4)]
    assert np.array_equal(one["slice 3 of 4 along axis 1 of "], y[:, 2])
    many = dict(slices(np.arange(48.0).reshape(2, 8, 3), (2, 3)))
    assert [*many] == ["the first slice along axis 1 of ", "the last slice along axis 1 of "]
    assert [*dict(slices(y, (2, 2, 3)))] == ["the first 2 of 4 slices of ", "the last 2 of 4 slices of "]
    assert not [*slices(y, (3, 2))]


def test_a_kernel_that_a_component_applies_has_its_page_whatever_its_inputs():
    q, k, v = np.random.default_rng(1).standard_normal((3, 1, 5, 2, 8), dtype=np.float32)
    applied = {
        "kernel": attention_softcap,
        "arrays": (q, k, v),
        "params": {"cap": 50.0, "scale": 0.25, "mask": None},
    }
    call = call_of("apply", applied)
    assert call is not None and call.op == "attention_softcap"
    assert [*call.inputs] == ["q", "k", "v"] and np.array_equal(call.inputs["v"].values(), v)
    assert call.params == {"cap": 50.0, "scale": 0.25}
    assert call_of("apply", {**applied, "arrays": (q, k)}) is None  # its page needs v
    assert call_of("apply", {**applied, "kernel": lambda q, k, v: q}) is None


def test_a_node_of_a_graph_is_no_kernel_of_the_same_name():
    """Its arrays may be more, or others, than the page's inputs; a single one is x."""
    x = np.ones((2, 3), np.float32)

    def node(*arrays):
        return x

    for name, arrays, op in (("concat", (x, x), None), ("concat", (x, x, x), None), ("silu", (x,), "silu")):
        node.__name__ = name
        call = call_of("apply", {"kernel": node, "arrays": arrays, "params": {}})
        assert (call and call.op) == op, name


def _of_another_size(found: np.ndarray, truth: np.ndarray, wrong) -> tuple[list[str], int]:
    """Return the causes and the number of runs of known bugs. wrong: number of the run -> its answer"""
    runs = []

    def run(arithmetic, change):
        if change == Change():
            return truth
        runs.append(change)
        return wrong(len(runs) - 1)

    place = Place("add", found, Segment(0, 1, ("add",), 1.0), run, None, {}, FLOAT32)  # type: ignore[arg-type]
    return place.explain(), len(runs)


@pytest.mark.parametrize("error", [ValueError, IndexError, TypeError, ZeroDivisionError])
def test_a_known_bug_that_does_not_fit_the_tensors_here_is_passed_over(error):
    def wrong(_):
        raise error("operands could not be broadcast together with shapes (1,6) (3,2)")

    assert _of_another_size(np.zeros((3, 6)), np.zeros((3, 2)), wrong) == ([], len(MUTANTS))


@pytest.mark.parametrize("error", [ValueError, IndexError, TypeError, ZeroDivisionError])
def test_a_wrong_result_that_the_next_operations_cannot_take_is_passed_over(error):
    """A table [2, 6] added to [3, 1, 6]: a bug that keeps the shape of one gives nothing to split in two."""

    def run(arithmetic, change):
        raise error("index 1 is out of bounds for axis 1 with size 1")

    place = Place("a", np.zeros((3, 6)), Segment(0, 2, ("add", "linear"), 1.0), run, None, {}, FLOAT32)  # type: ignore[arg-type]
    assert place.moved(0, np.zeros((3, 1, 6))) is None


def test_a_known_bug_that_changes_the_size_is_named():
    found = np.random.default_rng(1).standard_normal((3, 6))
    causes, runs = _of_another_size(found, np.zeros((3, 2)), lambda at: found if at < 2 else np.zeros(5))
    assert causes == [MUTANTS[0].name] and runs == 1 + len(MUTANTS)  # other sizes are not run a second time


def test_a_number_of_the_component_is_solved_for():
    x = np.random.default_rng(1).standard_normal((3, 6))
    own = {"heads": 3, "scales": [1.0, 4.0, 4.0], "eps": 0.5}

    def run(arithmetic, change):
        params = change.params(own)
        return x * np.sin(params["scales"][1] * x) + params["scales"][2] * x**2 + params["eps"]

    def told(**changed):
        found = run(None, Change(params=lambda params: {**params, **changed}))
        place = Place("a", found, Segment(0, 0, (), 0.0), run, lambda: 0 * x, {}, FLOAT64, params=own)
        return place.explain()

    assert told(scales=[1.0, 4.5, 4.5]) == ["scales[1, 2] is 4.5, not 4"]
    assert told(scales=[1.0, 4.0, 3.0]) == ["scales[2] is 3, not 4"]
    assert told(eps=0.25) == ["eps is 0.25, not 0.5"]
    assert told(eps=0.2583917) == []  # nobody writes such a number
    assert told(scales=[1.0, 4.5, 3.0]) == []


def test_only_known_bugs_that_change_the_tap_are_tried_on_the_outputs():
    x, asked = np.random.default_rng(1).standard_normal((3, 6)), []

    def run(arithmetic, change):
        return x + (change is MUTANTS[3].change)

    place = Place("a", x[::-1], Segment(0, 0, (), 0.0), run, lambda: 0 * x, {}, FLOAT64)
    assert place.explain(lambda bugs: [*map(asked.append, sorted(bugs)), "found"][-1:]) == ["found"]
    assert asked == [MUTANTS[3].name]


@pytest.mark.parametrize(("tap", "axis"), [("b.attention.1", 3), ("b.rope", 3), ("b.proj_in", 1)])
def test_the_channels_of_heads_are_their_last_axis(tap, axis):
    right = np.random.default_rng(1).standard_normal((2, 8, 8, 8))
    wrong = np.moveaxis(right.copy(), axis, 0)
    wrong[5] = np.random.default_rng(2).standard_normal(wrong[5].shape)
    place = Place(tap, np.moveaxis(wrong, 0, axis), Segment(0, 0, (), 0.0), lambda *_: right, None, {}, FLOAT64)
    assert f"axis {axis} (channels)" in " ".join(place.describe())


@pytest.mark.parametrize(
    ("found", "truth"), [((3, 6), (3, 6)), ((3, 5), (3, 2))], ids=["not finite", "few numbers"]
)
def test_known_bugs_of_another_size_are_sought_only_where_one_could_be_known(found, truth):
    right = np.full(truth, np.nan if found == truth else 1.0)
    assert _of_another_size(np.ones(found), right, lambda _: np.ones(found)) == ([], 0)


def test_the_result_of_another_tap_is_of_another_call_only_where_that_is_one():
    right, moved = np.random.default_rng(1).standard_normal((2, 4, 8))
    place = Place("a", moved, Segment(0, 0, (), 0.0), lambda *_: right, lambda: right, {}, FLOAT64)
    place = place._replace(others=lambda: {"a": right, "a.1": moved})
    assert place.explain() == ["it is what a.1 should be"]
    assert place._replace(again=["a.1"]).explain() == ["it is the result of another call: a.1"]


def test_calls_of_one_layer_are_told_from_outputs_of_one_block():
    names = ["a.0.rope", "a.0.rope.1", "a.0.rope.2", "a.0.0", "a.0.1", "blk.1", "blk.1.1"]
    assert of_one_layer("a.0.rope", "a.0.rope.1", names) and of_one_layer("a.0.rope.2", "a.0.rope.1", names)
    assert of_one_layer("blk.1", "blk.1.1", names)
    unet = ["input_blocks.1", "input_blocks.1.0", "input_blocks.1.1", "input_blocks.1.2"]
    assert not any(of_one_layer(one, other, unet) for one, other in itertools.combinations(unet, 2))
    assert not of_one_layer("a.0.0", "a.0.1", names) and not of_one_layer("a.0.rope", "a.0.0", names)


def test_a_bug_of_whole_models_that_the_outputs_contradict_is_one_of_this_place(monkeypatch):
    """Lumina 2's picture behind the padded length: where it is turned, that is as if the mask were not read."""
    case, judge = CASES["lumina2/lumina2/masked"], ModelJudge(model_files)
    inputs, right = case.realize(), lumina2.picture_ids

    def behind_the_padding(lengths, high, wide):
        return right(np.full_like(lengths, lengths.max()), high, wide)

    truth, honest = (judge.answer(case, inputs, Arithmetic(numerics)) for numerics in (FLOAT64, FLOAT32))
    standard = Standard(case, inputs, truth, honest, FLOAT32)
    with monkeypatch.context() as changed:
        changed.setattr(lumina2, "picture_ids", behind_the_padding)
        taps = Taps(ops=True)
        found = dict(judge.tapped(case, inputs, Arithmetic(FLOAT32), taps))
    causes = judge.explain(standard, {**taps, **found}, "noise_refiner.0.attention.rope").causes
    assert causes[0] == "the mask is not read, here but not in all of the model", causes


def test_a_bug_of_another_size_that_the_outputs_contradict_is_one_of_this_place(monkeypatch):
    """The first block alone attends to the whole picture, and the second within windows: the reverse of right."""
    case, judge = CASES["qwen2.5-vl-mmproj/qwen2_5_vision/wide"], ModelJudge(model_files)
    inputs = case.realize()
    truth, honest = (judge.answer(case, inputs, Arithmetic(numerics)) for numerics in (FLOAT64, FLOAT32))
    standard = Standard(case, inputs, truth, honest, FLOAT32)
    with monkeypatch.context() as changed:
        changed.setattr(qwen_vision, "runs_of", lambda i, whole, sizes: [sum(sizes)] if i == 0 else sizes)
        taps = Taps(ops=True)
        found = dict(judge.tapped(case, inputs, Arithmetic(FLOAT32), taps))
    causes = judge.explain(standard, {**taps, **found}, "blocks.0.attn.attention").causes
    assert causes == [
        "blocks within windows and blocks that attend to the whole picture are exchanged",
        "every block attends to the whole picture, here but not in all of the model",
    ]
