"""Each kernel in float64 against torch's own operation."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from refsd.kernels import activations
from refsd.kernels.attention import attention, causal_mask
from refsd.kernels.attention_online import attention_online
from refsd.kernels.conv2d import conv2d
from refsd.kernels.conv2d_im2col import conv2d_im2col
from refsd.kernels.conv2d_winograd import conv2d_winograd
from refsd.kernels.embedding import embedding
from refsd.kernels.group_norm import group_norm
from refsd.kernels.layer_norm import layer_norm
from refsd.kernels.linear import linear
from refsd.kernels.resample import upsample_nearest
from refsd.kernels.rms_norm import rms_norm
from refsd.kernels.softmax import softmax

pytestmark = pytest.mark.peer


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def agrees(y, peer, bound=1e-14):
    peer = peer.numpy()
    assert y.shape == peer.shape
    assert np.linalg.norm(y - peer) <= bound * np.linalg.norm(peer)


def t(*arrays):
    return tuple(torch.from_numpy(a) for a in arrays)


@pytest.mark.parametrize(
    ("mine", "peer"),
    [
        (activations.silu, F.silu),
        (activations.gelu, F.gelu),
        (activations.gelu_tanh, lambda x: F.gelu(x, approximate="tanh")),
        (activations.quick_gelu, lambda x: x * torch.sigmoid(1.702 * x)),
        (softmax, lambda x: F.softmax(x, -1)),
    ],
    ids=["silu", "gelu", "gelu_tanh", "quick_gelu", "softmax"],
)
def test_elementwise_and_softmax(mine, peer):
    x = 4 * normal(33, 77)
    agrees(mine(x), peer(torch.from_numpy(x)))


def test_geglu():
    x = normal(33, 154)
    value, gate = torch.from_numpy(x).chunk(2, -1)
    agrees(activations.geglu(x), value * F.gelu(gate))


@pytest.mark.parametrize("eps", [1e-5, 1e-6])
def test_norms(eps):
    x, weight, bias = normal(2, 12, 5, 7) * 3 + 1, normal(12, seed=1), normal(12, seed=2)
    agrees(group_norm(x, weight, bias, 4, eps), F.group_norm(*t(x), 4, *t(weight, bias), eps))
    x, weight, bias = normal(33, 77) * 3 + 1, normal(77, seed=1), normal(77, seed=2)
    agrees(layer_norm(x, weight, bias, eps), F.layer_norm(*t(x), (77,), *t(weight, bias), eps))
    agrees(rms_norm(x, weight, eps), F.rms_norm(*t(x), (77,), *t(weight), eps))


@pytest.mark.parametrize("masking", ["none", "causal", "random"])
def test_attention(masking):
    q, k, v = (normal(2, 33, 3, 40, seed=i) for i in range(3))
    mask = {
        "none": None,
        "causal": causal_mask(33, np.float64),
        "random": np.where(normal(2, 1, 33, 33) > 1, -np.inf, normal(2, 1, 33, 33, seed=9)),
    }[masking]
    heads = [a.transpose(1, 2) for a in t(q, k, v)]
    peer = F.scaled_dot_product_attention(*heads, attn_mask=None if mask is None else torch.from_numpy(mask))
    peer = peer.transpose(1, 2)
    agrees(attention(q, k, v, 40**-0.5, mask), peer)
    agrees(attention_online(*(a.astype(np.float32) for a in (q, k, v)), 40**-0.5, mask), peer, 1e-6)


@pytest.mark.parametrize(("stride", "side"), [(1, 3), (2, 3), (1, 1)])
def test_convolutions(stride, side):
    x, weight, bias = normal(2, 5, 9, 14), normal(7, 5, side, side, seed=1), normal(7, seed=2)
    pad = side // 2
    peer = F.conv2d(*t(x, weight, bias), stride=stride, padding=pad)
    agrees(conv2d(x, weight, bias, stride, (pad,) * 4), peer)
    agrees(conv2d_im2col(x, weight, bias, stride, (pad,) * 4), peer)
    if (stride, side) == (1, 3):
        agrees(conv2d_winograd(x, weight, bias, (1, 1, 1, 1)), peer, 1e-13)


def test_padding_on_two_sides():
    x, weight, bias = normal(2, 5, 9, 14), normal(7, 5, 3, 3, seed=1), normal(7, seed=2)
    peer = F.conv2d(F.pad(torch.from_numpy(x), (0, 1, 0, 1)), *t(weight, bias), stride=2)
    agrees(conv2d_im2col(x, weight, bias, 2, (0, 1, 0, 1)), peer)


def test_linear_embedding_upsampling():
    x, weight, bias = normal(2, 33, 77), normal(40, 77, seed=1), normal(40, seed=2)
    agrees(linear(x, weight, bias), F.linear(*t(x, weight, bias)))
    ids = np.array([[3, 0], [39, 3]])
    agrees(embedding(ids, weight), F.embedding(*t(ids, weight)), 0)
    image = normal(2, 3, 4, 7)
    agrees(upsample_nearest(image, 2), F.interpolate(*t(image), scale_factor=2, mode="nearest"), 0)
