"""Tokens against patches cut out one by one; and against the convolution that embeds them."""

import numpy as np
import pytest
from naive import patchify as naive

from refsd.kernels import patchify
from refsd.kernels.conv2d import conv2d
from refsd.kernels.linear import linear


@pytest.mark.parametrize(
    ("shape", "patch"), [((2, 3, 4, 6), 2), ((1, 4, 2, 2), 2), ((2, 2, 3, 6), 3), ((1, 2, 2, 3), 1)]
)
@pytest.mark.parametrize("order", ["", "_channels_last"])
def test_there_and_back(order, shape, patch):
    x = np.random.default_rng(0).standard_normal(shape)
    y = getattr(patchify, f"patchify{order}")(x, patch)
    np.testing.assert_array_equal(y, getattr(naive, f"patchify{order}")(x, patch))
    np.testing.assert_array_equal(getattr(patchify, f"unpatchify{order}")(y, patch, shape[2] // patch), x)


def test_a_patch_embedding_convolution_is_a_linear_layer_over_tokens():
    rng = np.random.default_rng(1)
    x, weight = rng.standard_normal((2, 3, 4, 6)), rng.standard_normal((5, 3, 2, 2))
    tokens = linear(patchify.patchify(x, 2), weight.reshape(5, -1), np.zeros(5))
    picture = conv2d(x, weight, np.zeros(5), 2, (0, 0, 0, 0))
    np.testing.assert_allclose(tokens, picture.reshape(2, 5, -1).swapaxes(1, 2), atol=1e-13)
