"""Attention in float64 against torch's and transformers': alignments, groups, sinks, rows that see nothing."""

import types

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

from refsd.kernels.attention import attention, boolean_mask
from refsd.kernels.attention_online import attention_online
from refsd.kernels.softmax import softmax, softmax_sinks

pytestmark = pytest.mark.peer

SCALE = 0.2


def qkv(L, J, H, G, D, E):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape) for shape in ((2, L, H, D), (2, J, G, D), (2, J, G, E))]


def heads(*arrays):
    return [torch.from_numpy(a).transpose(1, 2) for a in arrays]


def agrees(peer, q, k, v, *how):
    peer = peer.numpy()
    for attend, dtype, bound in (
        (attention, np.float64, 1e-14),
        (attention_online, np.float64, 1e-14),
        (attention_online, np.float32, 1e-6),
    ):
        y = attend(*(t.astype(dtype) for t in (q, k, v)), SCALE, *how)
        assert y.shape == peer.shape
        assert np.linalg.norm(y - peer) <= bound * np.linalg.norm(peer)


SHAPES = {
    "self": (33, 33, 4, 4, 40, 40),
    "cross": (20, 77, 4, 4, 40, 40),
    "grouped": (33, 33, 6, 2, 16, 16),
    "multi-query": (20, 33, 4, 1, 24, 24),
    "values wider": (20, 33, 2, 2, 16, 33),
    "values narrower": (130, 70, 4, 2, 33, 16),
}


@pytest.fixture(params=SHAPES.values(), ids=SHAPES)
def inputs(request):
    return qkv(*request.param)


def sdpa(q, k, v, **how):
    how = {"scale": SCALE, "enable_gqa": q.shape[2] != k.shape[2], **how}
    return F.scaled_dot_product_attention(*heads(q, k, v), **how).transpose(1, 2)


def test_plain(inputs):
    agrees(sdpa(*inputs), *inputs)


def test_is_causal_aligns_the_first_corner(inputs):
    agrees(sdpa(*inputs, is_causal=True), *inputs, None, 0)
    q, k, _ = inputs
    agrees(sdpa(*inputs, attn_mask=causal_upper_left(q.shape[1], k.shape[1])), *inputs, None, 0)


def test_causal_lower_right_aligns_the_last(inputs):
    q, k, _ = inputs
    L, J = q.shape[1], k.shape[1]
    if L > J and q.shape[2] != k.shape[2]:  # some rows see nothing, and heads are grouped: torch has no answer
        with pytest.raises(UserWarning, match="will produce NaNs"):
            sdpa(*inputs, attn_mask=causal_lower_right(L, J))
        return
    agrees(sdpa(*inputs, attn_mask=causal_lower_right(L, J)), *inputs, None, J - L)


def test_masks(inputs):
    q, k, _ = inputs
    rng = np.random.default_rng(1)
    mask = rng.standard_normal((2, 1, q.shape[1], k.shape[1]))
    mask[rng.random(mask.shape) < 0.4] = -np.inf
    agrees(sdpa(*inputs, attn_mask=torch.from_numpy(mask)), *inputs, mask)
    seen = rng.random(mask.shape) < 0.6
    agrees(sdpa(*inputs, attn_mask=torch.from_numpy(seen)), *inputs, boolean_mask(seen, np.float64))


@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], ids=["math", "flash"])
def test_a_query_that_sees_no_key_gives_zeros_in_torch_too(inputs, backend):
    q, k, v = inputs
    mask = np.zeros((q.shape[1], k.shape[1]))
    mask[3] = -np.inf
    if v.shape[3] != q.shape[3] or q.shape[2] != k.shape[2]:
        backend = SDPBackend.MATH
    with sdpa_kernel(backend):
        y = sdpa(*inputs, attn_mask=torch.from_numpy(mask))
    assert (y[:, 3] == 0).all()
    agrees(y, *inputs, mask)


def test_a_softmax_alone_gives_nan_in_torch_and_zeros_here():
    hidden = np.full((1, 3), -np.inf)
    assert F.softmax(torch.from_numpy(hidden), -1).isnan().all()
    assert (softmax(hidden) == 0).all()


@pytest.mark.parametrize("masked", [False, True])
def test_sinks_are_those_of_gpt_oss(inputs, masked):
    q, k, v = inputs
    H, G = q.shape[2], k.shape[2]
    sinks = np.random.default_rng(2).standard_normal(H)
    mask = np.zeros((2, 1, q.shape[1], k.shape[1]))
    if masked:
        mask[:, :, 3] = -np.inf
        mask[:, :, 4, ::2] = -np.inf
    module = types.SimpleNamespace(num_key_value_groups=H // G, sinks=torch.from_numpy(sinks), training=False)
    peer, weights = eager_attention_forward(module, *heads(q, k, v), torch.from_numpy(mask), SCALE)
    agrees(peer, q, k, v, mask, None, sinks)
    if masked:
        assert (peer[:, 3] == 0).all()
    scores = (heads(q)[0] @ heads(np.repeat(k, H // G, axis=2))[0].transpose(2, 3) * SCALE).numpy() + mask
    rows = np.repeat(np.tile(sinks, 2), q.shape[1])
    mine = softmax_sinks(scores.reshape(-1, k.shape[1]), rows)
    np.testing.assert_allclose(mine, weights.numpy().reshape(mine.shape), rtol=1e-12)
