"""An operation that the model has elsewhere is applied where it has none, or with another part of a modulation."""

import numpy as np
import pytest

from refsd.cases import CASES
from refsd.golden.judge import Standard
from refsd.judges.model import ModelJudge
from refsd.models import wan
from refsd.module import block
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT32, FLOAT64
from refsd.taps import Taps
from refsd.weights.model_files import model_files

CASE = CASES["wan/wan/frames"]


def _block(of_result=lambda y, mod: y, of_input=lambda m, h: h, gate=5):
    """A block with changes around its cross-attention; those show no taps. gate: part of the modulation"""

    @block
    def transformer_block(m, x, text, each, angle, eps):
        mod = m.add(each, m.weight("modulation"))
        h = m.adaptive_layer_norm(x, mod[:, 0], mod[:, 1], eps)
        x = m.gated_add(x, wan.attention(m["self_attn"], h, h, 2 * angle.shape[-1], eps, angle), mod[:, 2])
        h = of_input(m, m.layer_norm("norm3", x, eps))
        y = wan.attention(m["cross_attn"], h, text, 2 * angle.shape[-1], eps)
        x = m.add(x, of_result(y, mod))
        h = m.adaptive_layer_norm(x, mod[:, 3], mod[:, 4], eps)
        return m.gated_add(x, wan.mlp(m["ffn"], h), mod[:, gate])

    return transformer_block


@block
def _attention(m, x, other, head_dim, eps, angle=None, own=wan.AXES_DIM):
    """The keys of the text are rotated, too, with the positions of the first tokens."""
    q = m.rms_norm_apart("norm_q.weight", m.linear("q", x), eps)
    k = m.rms_norm_apart("norm_k.weight", m.linear("k", other), eps)
    q, k, v = (t.reshape(*t.shape[:2], -1, head_dim) for t in (q, k, m.linear("v", other)))
    if angle is None:
        turn = m.arithmetic.rope_angles(wan.positions((3, 2, 3))[None, : k.shape[1]], own, 10000.0)
        k = m.arithmetic.rope(k, turn)
    else:
        q, k = m.rope(q, angle), m.rope(k, angle)
    return m.linear("o", m.attention(q, k, v).reshape(x.shape))


@block
def _head(m, x, time, eps):
    mod = m.add(m.arithmetic.gelu(time, "tanh")[:, None], m.weight("modulation"))
    return m.linear("head", m.adaptive_layer_norm(x, mod[:, 0], mod[:, 1], eps))


@block
def _exchanging(m, x, other, head_dim, eps, angle=None):
    """Queries stand for values, and the reverse, where there are as many."""
    q = m.rms_norm_apart("norm_q.weight", m.linear("q", x), eps)
    k = m.rms_norm_apart("norm_k.weight", m.linear("k", other), eps)
    q, k, v = (t.reshape(*t.shape[:2], -1, head_dim) for t in (q, k, m.linear("v", other)))
    if angle is not None:
        q, k = m.rope(q, angle), m.rope(k, angle)
    return m.linear("o", (m.attention(v, k, q) if angle is not None else m.attention(q, k, v)).reshape(x.shape))


_OF = "of 6 along axis 1 of blocks.0.add"


@pytest.mark.parametrize(
    ("name", "changed", "tap", "words"),
    [
        ("attention", _attention, "blocks.0.cross_attn.attention", "k is rotated by rope, too"),
        (
            "transformer_block",
            _block(of_result=lambda y, mod: y * (1 + mod[:, 4][:, None])),
            "blocks.0.add.1",
            f"b is multiplied by 1 + slice 5 {_OF}, too",
        ),
        (
            "transformer_block",
            _block(gate=0),
            "blocks.0.gated_add.1",
            f"gate is read from slice 1 {_OF}, not slice 6 {_OF}",
        ),
        (
            "transformer_block",
            _block(of_input=lambda m, h: m.arithmetic.silu(h)),
            "blocks.0.cross_attn.q",
            "x goes through silu, too",
        ),
        ("head", _head, "head.add", "a goes through gelu_tanh, too"),
        ("attention", _exchanging, "blocks.0.self_attn.o", "attention before it: q and v swapped"),
    ],
)
def test_it_is_named(monkeypatch, name, changed, tap, words):
    judge, inputs = ModelJudge(model_files), CASE.realize()
    truth, honest = (judge.answer(CASE, inputs, Arithmetic(n)) for n in (FLOAT64, FLOAT32))
    taps = Taps(ops=True)
    with monkeypatch.context() as patch:
        patch.setattr(wan, name, changed)
        out = judge.tapped(CASE, inputs, Arithmetic(FLOAT32), taps)
    answer = {name: np.asarray(y) for name, y in {**taps, **out}.items()}
    if tap.endswith(".o"):  # a dump of linear layers alone
        answer = {name: y for name, y in answer.items() if name in out or name.endswith(".o")}
    assert judge.explain(Standard(CASE, inputs, truth, honest, FLOAT32), answer, tap).causes[0] == words
