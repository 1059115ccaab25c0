"""Gemma 2: what must hold of any of its answers; its parity is in tests/peers."""

import numpy as np
import pytest
import small_families as small

from refsd.models.gemma2 import WINDOW, gemma2
from refsd.module import Module
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import stored

SIZE = small.FAMILIES["gemma2"]["gemma2"]
WEIGHTS = {name: stored(array.astype(np.float64)) for name, array in small.weights("gemma2", SIZE).items()}
IDS = np.arange(14).reshape(2, 7)


def test_no_token_sees_a_later_one_nor_padding():
    whole = gemma2(Module(WEIGHTS), IDS)
    begun = gemma2(Module(WEIGHTS), IDS[:, :4])
    padded = gemma2(Module(WEIGHTS), IDS, np.array([[1] * 4 + [0] * 3, [1] * 7]))
    for a, b, c in zip(whole, begun, padded, strict=True):
        np.testing.assert_allclose(a[:, :4], b, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(c[0, :4], a[0, :4], rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(c[1], a[1], rtol=1e-12, atol=1e-14)


def test_embeddings_are_scaled():
    first = gemma2(Module(WEIGHTS), IDS)[0]
    np.testing.assert_allclose(first, WEIGHTS["model.embed_tokens.weight"].values()[IDS] * 40**0.5, rtol=1e-15)


def test_a_row_longer_than_the_window_is_refused():
    with pytest.raises(BadInput, match=f"within its window of {WINDOW}"):
        gemma2(Module(WEIGHTS), np.zeros((1, WINDOW + 1), int))
