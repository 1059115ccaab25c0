"""Krea 2's transformer: what must hold whatever the weights. tests/peers holds it to diffusers."""

import numpy as np
import pytest

from refsd.models.krea2 import krea2, token_ids
from refsd.module import Module
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.jitted

HEAD, KV, D, E, S, MLP = 8, 1, 16, 8, 3, 12
AXES = 4, 2, 2


def attention(at, width, head, queries, groups):
    shapes = {
        f"{at}.to_{n}.weight": (rows * head, width) for n, rows in (("q", queries), ("k", groups), ("v", groups))
    }
    shapes |= {f"{at}.to_gate.weight": (width, width), f"{at}.to_out.0.weight": (width, width)}
    return shapes | {f"{at}.norm_q.weight": (head,), f"{at}.norm_k.weight": (head,)}


def block(at, width, head, queries, groups):
    shapes = attention(f"{at}.attn", width, head, queries, groups)
    shapes |= {f"{at}.norm1.weight": (width,), f"{at}.norm2.weight": (width,)}
    return shapes | {
        f"{at}.ff.gate.weight": (MLP, width),
        f"{at}.ff.up.weight": (MLP, width),
        f"{at}.ff.down.weight": (width, MLP),
    }


SHAPES = {
    **{f"img_in.{n}": s for n, s in (("weight", (D, 16)), ("bias", (D,)))},
    **{f"time_embed.linear_{i}.weight": (D, 32 if i == 1 else D) for i in (1, 2)},
    **{f"time_embed.linear_{i}.bias": (D,) for i in (1, 2)},
    "time_mod_proj.weight": (6 * D, D),
    "time_mod_proj.bias": (6 * D,),
    **block("text_fusion.layerwise_blocks.0", E, E, 1, 1),
    "text_fusion.projector.weight": (1, S),
    **block("text_fusion.refiner_blocks.0", E, E, 1, 1),
    "txt_in.norm.weight": (E,),
    "txt_in.linear_1.weight": (D, E),
    "txt_in.linear_2.weight": (D, D),
    "txt_in.linear_1.bias": (D,),
    "txt_in.linear_2.bias": (D,),
    **block("transformer_blocks.0", D, HEAD, 2, KV),
    "transformer_blocks.0.scale_shift_table": (6, D),
    "final_layer.scale_shift_table": (2, D),
    "final_layer.norm.weight": (D,),
    "final_layer.linear.weight": (16, D),
    "final_layer.linear.bias": (16,),
}


@pytest.fixture(scope="module")
def given():
    rng = np.random.default_rng(3)
    m = Module({name: stored(rng.standard_normal(shape) / 2) for name, shape in SHAPES.items()})
    x, context = rng.standard_normal((2, 4, 4, 6)), rng.standard_normal((2, 5, S, E))
    return m, x, np.array([0.8, 0.3]), context


def run(given, **changed):
    m, x, t, context = given
    words = changed.pop("context", context)
    return krea2(m, changed.pop("x", x), t, words, axes_dim=AXES, **changed)


def test_positions():
    want = [[0, 0, 0]] * 2 + [[0, r, c] for r in range(2) for c in range(3)]
    assert token_ids(2, 4, 6).tolist() == want


def test_the_order_of_words_does_not_matter_and_that_of_hidden_states_does(given):
    """Words have no positions: Qwen3-VL has put the order into its states."""
    context, y = given[3], run(given)
    np.testing.assert_allclose(run(given, context=context[:, ::-1]), y, rtol=1e-9, atol=1e-12)
    assert np.abs(run(given, context=context[:, :, ::-1]) - y).max() > 1e-3


def test_masked_words_are_not_read(given):
    context, mask = given[3], np.array([[1, 1, 0, 0, 1], [1, 1, 1, 1, 1]])
    y = run(given, context_mask=mask)
    other = np.where(mask[..., None, None] != 0, context, 7.0)
    np.testing.assert_allclose(run(given, context=other, context_mask=mask), y, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(y[1], run(given)[1], rtol=1e-9, atol=1e-12)
    assert np.abs(y[0] - run(given)[0]).max() > 1e-3


def test_the_picture_s_places_matter(given):
    y = run(given, x=given[1][:, :, :, ::-1].copy())
    assert np.abs(y[..., ::-1] - run(given)).max() > 1e-3
