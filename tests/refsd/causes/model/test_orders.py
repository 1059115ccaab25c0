"""Blocks skipped, run twice or exchanged; parts and streams of a modulation; parts of a patch: of any model."""

import numpy as np
import pytest

from refsd.cases import CASES
from refsd.judges.comparison import with_case
from refsd.judges.model import ModelJudge
from refsd.models import flux, krea2, ltx2, vae_minimax_h3, vae_qwen_image21
from refsd.module import Taps
from refsd.networks.part_orders import apart, part_orders, roles
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT32, FLOAT64
from refsd.weights.model_files import model_files

pytestmark = pytest.mark.jitted  # whole models

FLUX, KREA2 = CASES["flux-dev/flux/first-step"], CASES["krea2/krea2/masked"]


def _causes(monkeypatch, case, page, function, wrong, given=lambda name: True):
    """Return the causes that are told of a dump whose engine has another function on a model's page."""
    judge, inputs, taps = ModelJudge(model_files), case.realize(), Taps(ops=True)
    truth = judge.answer(case, inputs, Arithmetic(FLOAT64))
    right = getattr(page, function)
    with monkeypatch.context() as patch:
        patch.setattr(page, function, lambda *told, **named: wrong(right, *told, **named))
        outputs = judge.tapped(case, inputs, Arithmetic(FLOAT32), taps)
    dump = {**{name: y for name, y in taps.items() if given(name)}, **outputs}
    return with_case(case, dump, truth, FLOAT32, model_files).causes


def _silent(m):
    own = m[""]
    own.prefix, own.taps = m.prefix, None
    return own


def test_a_block_that_is_skipped_is_told_first(monkeypatch):
    def second(right, m, x, *rest):
        return x if m.prefix == "single_blocks.1." else right(m, x, *rest)

    causes = _causes(monkeypatch, FLUX, flux, "single_stream_block", second)
    assert next(iter(causes)) == "block 1 of single_blocks is skipped"


def test_a_skipped_block_is_told_from_the_outputs_alone(monkeypatch):
    def first(right, m, img, txt, *rest):
        return (img, txt) if m.prefix == "double_blocks.0." else right(m, img, txt, *rest)

    causes = _causes(monkeypatch, FLUX, flux, "double_stream_block", first, given=lambda name: False)
    assert "block 0 of double_blocks is skipped" in causes


@pytest.mark.parametrize("seen", [0, 1])
def test_a_block_that_runs_twice_is_told_whichever_time_the_dump_shows(monkeypatch, seen):
    def twice(right, m, x, *rest):
        if m.prefix != "single_blocks.0.":
            return right(m, x, *rest)
        for time in (0, 1):
            x = right(m if time == seen else _silent(m), x, *rest)
        return x

    assert _causes(monkeypatch, FLUX, flux, "single_stream_block", twice) == ["block 0 of single_blocks runs twice"]


def test_blocks_in_each_others_place_are_told(monkeypatch):
    def other(right, m, h, *rest):
        own = m[""]
        own.prefix = {"transformer_blocks.0.": "transformer_blocks.1."}.get(m.prefix, "transformer_blocks.0.")
        return right(own, h, *rest)

    causes = _causes(monkeypatch, KREA2, krea2, "transformer_block", other)
    assert causes == ["blocks 0 and 1 of transformer_blocks run in each other's place"]


def test_the_order_of_a_modulations_parts_is_told(monkeypatch):
    def gate_first(right, m, vec, times):
        parts = right(m, vec, times)
        return tuple(flux.Modulation(mod.scale, mod.gate, mod.shift) for mod in parts)

    causes = _causes(monkeypatch, FLUX, flux, "modulation", gate_first)
    assert causes == ["the modulation's parts are read in the order gate, shift, scale"]


def test_a_part_that_is_read_where_another_lies_is_told(monkeypatch):
    """The MLP's shift, scale and gate are attention's."""

    def first_again(right, m, vec, times):
        return right(m, vec, times)[:1] * times

    causes = _causes(monkeypatch, FLUX, flux, "modulation", first_again)
    assert causes[0].startswith("part 2 of the 2 of ") and causes[0].endswith(" is read where part 1 lies")


@pytest.mark.parametrize("name", ["ltx2/ltx2/video", "ltx23/ltx2/video"])
def test_frequencies_in_float32_are_told_where_a_dump_has_taps(monkeypatch, name):
    """The outputs are within what float32 allows: the reference's own angles are rounded to it."""

    def of_float32(right, m, places, extent, channels, theta, heads):
        powers = np.float32(theta) ** np.linspace(0, 1, channels // (2 * places.shape[1]), dtype=np.float32)
        share = places.astype(np.float32) / np.array(extent, np.float32)
        turns = ((2 * share - 1)[:, None] * (np.float32(np.pi / 2) * powers)[:, None]).reshape(len(places), -1)
        more = channels // 2 - turns.shape[1]
        return np.pad(turns, ((0, 0), (more, 0))).reshape(1, len(places), heads, -1)

    causes = _causes(monkeypatch, CASES[name], ltx2, "angles", of_float32)
    assert causes[0] == "LTX-2's frequencies are powers in float32"


@pytest.mark.parametrize(
    ("name", "page", "function"),
    [
        ("minimax-h3-vae/minimax-h3-vae-decoder/picture", vae_minimax_h3, "to_vae"),
        ("qwen-image21-vae/qwen-image21-vae-decoder/wide", vae_qwen_image21, "to_vae"),
        ("qwen-image21-vae/qwen-image21-vae-encoder/tall", vae_qwen_image21, "to_denoiser"),
    ],
)
def test_statistics_that_are_not_read_are_told_not_that_an_addition_lacks_its_operand(
    monkeypatch, name, page, function
):
    def plain(right, m, x, mean, std):
        return right(m, x, mean, std) if len(mean) == 3 else right(m, x, [0.0] * len(mean), [1.0] * len(std))

    causes = _causes(monkeypatch, CASES[name], page, function, plain)
    assert "statistics of" in causes[0] and "mean 0, deviation 1" in causes[0], causes


def test_modulations_of_the_streams_are_told_that_are_exchanged(monkeypatch):
    def exchanged(right, m, img, txt, img_mod, txt_mod, *rest, **named):
        return right(m, img, txt, txt_mod, img_mod, *rest, **named)

    causes = _causes(monkeypatch, FLUX, flux, "double_stream", exchanged)
    assert [*causes] == ["modulated by txt_mod.lin instead of img_mod.lin"]


def test_a_patchs_numbers_in_another_order_are_told(monkeypatch):
    def channels_last(right, tokens, H, W):
        return right(tokens.reshape(*tokens.shape[:2], 4, -1).swapaxes(2, 3).reshape(tokens.shape), H, W)

    causes = _causes(monkeypatch, KREA2, krea2, "unpack", channels_last)
    assert causes[0] == "the 4 parts of final_layer, which are interleaved, are read one behind the other"


def test_a_stream_that_a_block_gives_back_is_told(monkeypatch):
    def unchanged(right, m, img, txt, *rest, **named):
        new, _ = right(m, img, txt, *rest, **named)
        return new, txt

    def given(name):
        return name in ("txt_in", "img_in", "double_blocks.0.0", "double_blocks.0.1")

    causes = _causes(monkeypatch, FLUX, flux, "double_stream", unchanged, given)
    assert [*causes] == ["it is txt_in, unchanged: what comes between is left out"]


def test_a_mask_that_is_padded_on_the_other_side_is_told(monkeypatch):
    def pictures_first(right, context_mask, pictures):
        return np.roll(right(context_mask, pictures), pictures, axis=-1)

    causes = _causes(monkeypatch, KREA2, krea2, "text_mask", pictures_first)
    assert [*causes] and causes[0].startswith("the mask's parts joined along axis 1 stand in another order")


def test_values_that_are_rotated_are_told(monkeypatch):
    def rotated(right, m, q, k, v, angle, mask=None):
        return right(m, q, k, _silent(m).rope(v, angle), angle, mask)

    causes = _causes(monkeypatch, FLUX, flux, "rotary_attention", rotated)
    assert "values are rotated, as queries and keys are" in causes


def test_norms_of_one_stream_that_are_missing_are_told_from_the_blocks_alone(monkeypatch):
    def bare(right, m, q, k, eps=flux.EPS):
        return (q, k) if ".txt_attn." in m.prefix else right(m, q, k, eps)

    def given(name):
        return name in ("txt_in", "img_in") or (name.startswith(("double", "single")) and name.count(".") == 2)

    causes = _causes(monkeypatch, FLUX, flux, "qk_norm", bare, given)
    assert [*causes] == ["queries and keys are not normalised, of the text's stream"]


def test_an_activation_that_is_left_out_is_told_where_its_result_is_not_given(monkeypatch):
    def bare(right, m, x):
        return m.linear("out_layer", m.linear("in_layer", x))

    def given(name):
        return "silu" not in name

    assert _causes(monkeypatch, FLUX, flux, "mlp_embedder", bare, given) == ["silu left out: x is the result"]


def test_a_gate_that_is_forgotten_is_told_where_its_product_is_not_given(monkeypatch):
    def given(name):
        return ".multiply" not in name

    monkeypatch.setattr(Arithmetic, "multiply", lambda self, x, y: x if np.size(x) >= np.size(y) else y)
    case, judge, taps = KREA2, ModelJudge(model_files), Taps(ops=True)
    outputs = judge.tapped(case, case.realize(), Arithmetic(FLOAT32), taps)
    monkeypatch.undo()
    truth = judge.answer(case, case.realize(), Arithmetic(FLOAT64))
    dump = {**{name: y for name, y in taps.items() if given(name)}, **outputs}
    causes = with_case(case, dump, truth, FLOAT32, model_files).causes
    assert causes[0] in ("mul left out: a is the result", "mul left out: b is the result")


def test_one_is_added_to_all_weights_of_norms(monkeypatch):
    """Also to those of heads, whose names end otherwise: no norm of the model is left out of the cause."""
    norm = Arithmetic.rms_norm
    monkeypatch.setattr(Arithmetic, "rms_norm", lambda self, x, w, eps=1e-6: norm(self, x, w + 1, eps))
    case, judge, taps = KREA2, ModelJudge(model_files), Taps(ops=True)
    outputs = judge.tapped(case, case.realize(), Arithmetic(FLOAT32), taps)
    monkeypatch.undo()
    truth = judge.answer(case, case.realize(), Arithmetic(FLOAT64))
    causes = with_case(case, {**taps, **outputs}, truth, FLOAT32, model_files).causes
    assert [*causes] == ["1 is added to the weights of norms once more"]


def test_the_parts_of_a_modulation_are_known_by_their_values():
    y = np.arange(24.0).reshape(2, 12)
    parts = np.split(y, 6, axis=-1)
    assert roles(y, shift=parts[3], scale=parts[4]) == {0: "shift", 1: "scale", 2: "gate"}
    assert roles(y, shift=parts[3], scale=parts[4] + 1) is None
    halves = np.split(y, 2, axis=-1)
    assert roles(y, shift=halves[1], scale=halves[0]) == {1: "shift", 0: "scale"}
    words = "the modulation's parts are read in the order gate, shift, scale"
    named = part_orders(12, {0: "shift", 1: "scale", 2: "gate"})
    order = next(order for phrase, order in named if phrase == words)
    assert [*order] == [2, 3, 4, 5, 0, 1, 8, 9, 10, 11, 6, 7]
    assert apart("a.0.txt.1", "a.0.img.1") == ["txt.1", "img.1"]
