"""Every convolution in float64 against torch's."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from refsd.kernels.conv2d import conv2d
from refsd.kernels.conv2d_depthwise import conv2d_depthwise
from refsd.kernels.conv2d_im2col import conv2d_im2col
from refsd.kernels.conv2d_winograd import conv2d_winograd
from refsd.kernels.conv3d import conv3d
from refsd.kernels.conv3d_frames import conv3d_frames

pytestmark = pytest.mark.peer


def arguments(*shapes):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape) for shape in shapes]


def agrees(y, peer, bound=1e-14):
    peer = peer.numpy()
    assert y.shape == peer.shape
    assert np.linalg.norm(y - peer) <= bound * np.linalg.norm(peer)


def torch_conv(x, weight, bias, stride, padding, dilation, groups):
    """padding: before and after each axis in turn; torch.nn.functional.pad counts from the last axis."""
    axes = [padding[i : i + 2] for i in range(0, len(padding), 2)]
    padded = F.pad(torch.from_numpy(x), [p for axis in reversed(axes) for p in axis])
    function = F.conv2d if x.ndim == 4 else F.conv3d
    weights = torch.from_numpy(weight), torch.from_numpy(bias)
    return function(padded, *weights, stride=stride, dilation=dilation, groups=groups)


@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (1, 1, 1, 1), (0, 1, 0, 1), (2, 1, 0, 3)])
@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("stride", [1, 2, (2, 3)])
@pytest.mark.parametrize("dilation", [1, 2, (1, 3)])
@pytest.mark.parametrize("taps", [(1, 1), (3, 3), (2, 3)])
def test_conv2d(taps, dilation, stride, groups, padding):
    x, weight, bias = arguments((2, 6, 9, 14), (12, 6 // groups, *taps), 12)
    how = (stride, padding, dilation, groups)
    peer = torch_conv(x, weight, bias, *how)
    agrees(conv2d(x, weight, bias, *how), peer)
    agrees(conv2d_im2col(x, weight, bias, *how), peer)
    if groups == 6:
        agrees(conv2d_depthwise(x, weight, bias, stride, padding, dilation), peer)


@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (1, 1, 1, 1), (0, 1, 0, 1), (2, 1, 0, 3)])
@pytest.mark.parametrize("tile", [2, 4])
def test_winograd(tile, padding):
    x, weight, bias = arguments((2, 35, 11, 18), (17, 35, 3, 3), 17)
    peer = torch_conv(x, weight, bias, 1, padding, 1, 1)
    agrees(conv2d_winograd(x, weight, bias, padding, tile), peer, 1e-13)


@pytest.mark.parametrize("padding", [(0, 0, 0, 0, 0, 0), (1, 1, 1, 1, 1, 1), (2, 0, 0, 1, 1, 2)])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("stride", [1, (1, 2, 2), (2, 1, 3)])
@pytest.mark.parametrize("dilation", [1, (2, 1, 1), (1, 2, 2)])
@pytest.mark.parametrize("taps", [(3, 3, 3), (3, 1, 1), (1, 2, 3)])
def test_conv3d(taps, dilation, stride, groups, padding):
    x, weight, bias = arguments((2, 6, 5, 6, 9), (3, 6 // groups, *taps), 3)
    how = (stride, padding, dilation, groups)
    peer = torch_conv(x, weight, bias, *how)
    agrees(conv3d(x, weight, bias, *how), peer)
    agrees(conv3d_frames(x, weight, bias, *how), peer)
