"""Tensors of other names and layouts are told by shape and content; what is no tap is left alone."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from refsd.cases import CASES
from refsd.engines import registry
from refsd.engines.dump.engine import give_names
from refsd.engines.dump.matching import match
from refsd.golden import conform
from refsd.judges import judges
from refsd.judges.model import ModelJudge
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64
from refsd.taps import Taps
from refsd.weights.model_files import model_files

DRAW = np.random.default_rng(1).standard_normal
REFERENCE = {
    "conv": DRAW((2, 4, 3, 5)),
    "q": DRAW((2, 7, 6)),
    "k": DRAW((2, 7, 6)),
    "v": DRAW((2, 7, 6)),
    "norm": DRAW((2, 7, 6)),
    "wide": DRAW((2, 7, 18)),
}


@pytest.mark.parametrize(
    ("turn", "layout"),
    [
        (lambda y: y, ""),
        (lambda y: np.moveaxis(y, 1, -1), "channels last"),
        (np.transpose, "axes reversed"),
        (lambda y: y.reshape(8, 15), ""),
        (lambda y: y.astype(np.float16), ""),
        (lambda y: y * (1 + 0.1 * DRAW(y.shape)), ""),
    ],
)
def test_a_layout(turn, layout):
    (one,) = match({"h.0": turn(REFERENCE["conv"])}, REFERENCE)
    assert (one.name, [*one.taps], one.layout) == ("h.0", ["conv"], layout)
    assert one.taps["conv"].shape == (2, 4, 3, 5)
    assert np.linalg.norm(one.taps["conv"] - REFERENCE["conv"]) < 0.2 * np.linalg.norm(REFERENCE["conv"])


def test_fused_q_k_v():
    (one,) = match({"qkv": np.concatenate([REFERENCE[name] for name in "qkv"], -1)}, REFERENCE)
    assert str(one) == "qkv is q, k, v (fused)"
    assert all(np.array_equal(one.taps[name], REFERENCE[name]) for name in "qkv")


def test_a_part_in_any_order_and_nothing_else():
    tensors = {"b": REFERENCE["norm"], "a": REFERENCE["v"], "other": DRAW((2, 7, 6)), "odd": DRAW((3, 3))}
    found = match(tensors, REFERENCE)
    assert [str(one) for one in found] == ["b is norm", "a is v"]


def test_two_taps_that_are_nearly_alike_are_not_told_apart_nor_is_one_given_twice():
    twins = {**REFERENCE, "again": REFERENCE["norm"] + 0.01}
    assert match({"b": REFERENCE["norm"] + 0.005}, twins) == []
    same = {**REFERENCE, "again": REFERENCE["norm"]}  # a block's output and its last operation's
    assert [str(one) for one in match({"b": REFERENCE["norm"]}, same)] == ["b is norm"]
    assert len(match({"a": REFERENCE["v"], "b": REFERENCE["v"]}, REFERENCE)) == 1


def test_what_is_not_finite_or_empty_is_no_tap():
    assert match({"a": np.full((2, 7, 6), np.nan), "b": np.zeros((0, 6))}, REFERENCE) == []


@pytest.mark.jitted
def test_a_named_tensor_may_have_its_axes_in_another_order(tmp_path):
    """As `refsd compare` reads it: a convolution's result with its channels last. A wrong one has its place."""
    case = CASES["wan/wan/frames"]
    judge, inputs = ModelJudge(model_files), case.realize()
    patches = judge.reference_taps(case, inputs)["patch_embedding"]
    out = judge.answer(case, inputs, Arithmetic(FLOAT64))
    runner = conform.Runner(judges(model_files), lambda case: out)._replace(explains=False)

    def result(given, names):
        path = tmp_path / "mine.safetensors"
        save_file({name: np.ascontiguousarray(y, np.float32) for name, y in ({"mine": given} | out).items()}, path)
        (found,) = registry.find(f"dump:{path}", model_files=model_files)
        if names:
            give_names([found.engine], names)
        (told,) = conform.run(runner, [found.engine], [case])
        return told

    assert result(np.moveaxis(patches, 1, -1), ["mine=patch_embedding"]).status == "pass"
    wrong = result(np.moveaxis(patches * 2, 1, -1), ["mine=patch_embedding"])
    assert wrong.status == "fail" and wrong.place.startswith("patch_embedding")


class _OnceInverted(Arithmetic):
    """The first RMS norm's result has the other sign."""

    def rms_norm(self, x, weight, eps=1e-6):
        y = super().rms_norm(x, weight, eps)
        self.inverted = getattr(self, "inverted", 0) + 1
        return -y if self.inverted == 1 else y


@pytest.mark.jitted
def test_an_error_at_a_tensor_that_nothing_names_is_at_or_before_the_place(tmp_path):
    """The wrong norm is told by no content; what is made of it is. Named, it is the place itself."""
    case = CASES["wan/wan/frames"]
    judge, inputs = ModelJudge(model_files), case.realize()
    taps = Taps(ops=True)
    out, right = judge.tapped(case, inputs, _OnceInverted(FLOAT64), taps), judge.reference_taps(case, inputs)
    first = next(name for name, y in taps.items() if not np.allclose(y, right[name]))
    path = tmp_path / "mine.safetensors"
    own = {f"t.{i}": y for i, y in enumerate(taps.values())} | out
    save_file({name: np.ascontiguousarray(y, np.float32) for name, y in own.items()}, path)
    truth = judge.answer(case, inputs, Arithmetic(FLOAT64))
    runner = conform.Runner(judges(model_files), lambda case: truth)._replace(explains=False)

    def place(*names):
        (found,) = registry.find(f"dump:{path}", model_files=model_files)
        give_names([found.engine], names)
        (told,) = conform.run(runner, [found.engine], [case])
        return told.place

    unnamed = place()
    assert unnamed.startswith("at or before ") and [*right].index(unnamed.split()[-1]) > [*right].index(first)
    assert place(f"t.{[*taps].index(first)}={first}") == first
