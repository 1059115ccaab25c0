"""How hidden states are joined, on numbers that tell where they came from."""

import numpy as np
import pytest

from refsd.golden.errors import BadInput
from refsd.module import Module
from refsd.pipelines import conditioning

L = np.arange(2 * 3 * 2.0).reshape(2, 3, 2)
G = 100 + np.arange(2 * 3 * 4.0).reshape(2, 3, 4)


def test_sdxl():
    sizes = np.array([[64.0, 32, 0, 1, 64, 32]] * 2)
    made = conditioning.sdxl(Module({}), L, G, G[:, 0], sizes)
    np.testing.assert_array_equal(made.context, np.concatenate([L, G], 2))
    assert made.y.shape == (2, 4 + 6 * 256)
    np.testing.assert_array_equal(made.y[:, :4], G[:, 0])
    np.testing.assert_allclose(made.y[0, 4:6], np.cos([64, 64 * 10000 ** (-1 / 128)]), rtol=1e-12)


def test_sd3_with_and_without_t5():
    t5 = -1 - np.arange(2 * 5 * 9.0).reshape(2, 5, 9)
    made = conditioning.sd3(L, G, L[:, 0], G[:, 0], t5)
    assert made.context.shape == (2, 8, 9)
    np.testing.assert_array_equal(made.context[:, :3, :6], np.concatenate([L, G], 2))
    assert not made.context[:, :3, 6:].any()
    np.testing.assert_array_equal(made.context[:, 3:], t5)
    np.testing.assert_array_equal(made.y, np.concatenate([L[:, 0], G[:, 0]], 1))
    without = conditioning.sd3(L, G, L[:, 0], G[:, 0]).context
    assert without.shape == (2, 259, 4096)
    assert not without[:, 3:].any()
    for wrong in (t5[:1], t5[..., :5]):
        with pytest.raises(BadInput, match="do not fit"):
            conditioning.sd3(L, G, L[:, 0], G[:, 0], wrong)
    with pytest.raises(BadInput, match="side by side"):
        conditioning.sd3(L[:, :2], G, L[:, 0], G[:, 0], t5)


def test_chroma_sees_one_token_of_padding():
    mask = [[1, 0, 0], [1, 1, 1]]
    np.testing.assert_array_equal(conditioning.chroma(L, mask).mask, [[1, 1, 0], [1, 1, 1]])
    np.testing.assert_array_equal(conditioning.chroma(L, mask, pads=0).mask, mask)


def test_zimage_leaves_padding_out_on_either_side():
    made = conditioning.zimage(L, [[1, 0, 0], [0, 1, 1]])
    np.testing.assert_array_equal(made.context, [[L[0, 0], [0, 0]], L[1, 1:]])
    np.testing.assert_array_equal(made.mask, [[1, 0], [1, 1]])


def test_flux_and_flux2():
    made = conditioning.flux(L, G[:, 0])
    np.testing.assert_array_equal(made.context, L)
    np.testing.assert_array_equal(made.y, G[:, 0])
    made = conditioning.flux2(L, 5).context
    np.testing.assert_array_equal(made[:, :3], L)
    assert made.shape == (2, 5, 2)
    assert not made[:, 3:].any()
    assert conditioning.flux2(L, 2).context.shape == L.shape
