"""How a family joins its encoders' states, on numbers that tell where they came from."""

import numpy as np
import pytest

from refsd.conventions import CONVENTIONS
from refsd.families import VARIANTS
from refsd.families.family import Encoded, EncodedPrompt
from refsd.module import Module
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import stored

L = np.arange(2 * 3 * 2.0).reshape(2, 3, 2)
G = 100 + np.arange(2 * 3 * 4.0).reshape(2, 3, 4)
SEEN = np.ones((2, 3), np.int64)


def joined(variant, engine="diffusers", network=None, **encoders):
    """encoders: component -> hidden, pooled, mask"""
    encoded = {name: Encoded(*parts) for name, parts in encoders.items()}
    return VARIANTS[variant].join(EncodedPrompt(encoded, Module(network or {}), (64, 32), CONVENTIONS[engine]))


def test_sdxl():
    made = joined("sdxl", clip=(L, None, SEEN), clip_g=(G, G[:, 0], SEEN))
    np.testing.assert_array_equal(made.context, np.concatenate([L, G], 2))
    assert made.y.shape == (2, 4 + 6 * 256)
    np.testing.assert_array_equal(made.y[:, :4], G[:, 0])
    np.testing.assert_allclose(made.y[0, 4:6], np.cos([64, 64 * 10000 ** (-1 / 128)]), rtol=1e-12)


def test_sdxls_refiner_is_told_a_score():
    made = joined("sdxl-refiner", clip_g=(G, G[:, 0], SEEN))
    np.testing.assert_array_equal(made.context, G)
    assert made.y.shape == (2, 4 + 5 * 256)
    np.testing.assert_allclose(made.y[0, -256:-254], np.cos([6, 6 * 10000 ** (-1 / 128)]), rtol=1e-12)


def test_sd3_with_and_without_t5():
    t5 = -1 - np.arange(2 * 5 * 9.0).reshape(2, 5, 9)
    clips = {"clip": (L, L[:, 0], SEEN), "clip_g": (G, G[:, 0], SEEN)}
    made = joined("sd3", **clips, t5=(t5, None, SEEN))
    assert made.context.shape == (2, 8, 9)
    np.testing.assert_array_equal(made.context[:, :3, :6], np.concatenate([L, G], 2))
    assert not made.context[:, :3, 6:].any()
    np.testing.assert_array_equal(made.context[:, 3:], t5)
    np.testing.assert_array_equal(made.y, np.concatenate([L[:, 0], G[:, 0]], 1))
    network = {"context_embedder.weight": stored(np.ones((1, 4096), np.float32))}
    for engine, tokens in (("sdcpp", 77), ("diffusers", 256)):
        without = joined("sd3", engine, network, **clips).context
        assert without.shape == (2, 3 + tokens, 4096)
        assert not without[:, 3:].any()
    for wrong in (t5[:1], t5[..., :5]):
        with pytest.raises(BadInput, match="do not fit"):
            joined("sd3", **clips, t5=(wrong, None, SEEN))
    with pytest.raises(BadInput, match="side by side"):
        joined("sd3", **clips | {"clip": (L[:, :2], L[:, 0], SEEN)}, t5=(t5, None, SEEN))


def test_chroma_sees_one_token_of_padding():
    mask = np.array([[1, 0, 0], [1, 1, 1]])
    np.testing.assert_array_equal(joined("chroma", t5=(L, None, mask)).mask, [[1, 1, 0], [1, 1, 1]])


def test_zimage_leaves_padding_out_on_either_side():
    made = joined("zimage", qwen3=(L, None, np.array([[1, 0, 0], [0, 1, 1]])))
    np.testing.assert_array_equal(made.context, [[L[0, 0], [0, 0]], L[1, 1:]])
    np.testing.assert_array_equal(made.mask, [[1, 0], [1, 1]])


def test_flux_and_flux2():
    made = joined("flux-dev", clip=(G, G[:, 0], SEEN), t5=(L, None, SEEN))
    np.testing.assert_array_equal(made.context, L)
    np.testing.assert_array_equal(made.y, G[:, 0])
    made = joined("flux2-klein", qwen3=(L, None, SEEN)).context
    np.testing.assert_array_equal(made[:, :3], L)
    assert made.shape == (2, 512, 2)
    assert not made[:, 3:].any()
    long = np.ones((1, 513, 2))
    np.testing.assert_array_equal(joined("flux2-dev", mistral=(long, None, SEEN)).context, long)


def test_flux3_sees_the_padding():
    made = joined("flux3", qwen3_vl=(L, None, np.array([[1, 0, 0], [1, 1, 1]])))
    np.testing.assert_array_equal(made.context, L)
    assert made.mask is None
