"""Products of blocks against ggml: bit for bit with its portable C, within rounding of its vector code."""

import ggml_dots as theirs
import numpy as np
import pytest
from quantized_factors import factors

from refsd.kernels.linear_quantized import DOTS, linear_quantized
from refsd.kernels.quant import BLOCK_TYPES

pytestmark = pytest.mark.peer


@pytest.fixture(scope="module")
def portable():
    return theirs.portable()


@pytest.fixture(scope="module")
def vectorised():
    return theirs.vectorised()


@pytest.mark.parametrize("data", ["bell", "wide", "outliers", "integers"])
@pytest.mark.parametrize("name", DOTS)
def test_every_bit_of_the_portable_c(portable, name, data):
    x, packed, blocks = factors(name, 7, 20, 2048, data=data)
    expected = theirs.product(portable, name, packed, blocks)
    np.testing.assert_array_equal(linear_quantized(x, blocks, name).view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("name", DOTS)
def test_the_vector_code_rounds_elsewhere(vectorised, name):
    """Measured: at most 1.1 u of the sum of magnitudes; u = 2**-24."""
    x, packed, blocks = factors(name, 7, 20, 2048)
    activation = BLOCK_TYPES[DOTS[name].activation]
    a = activation.dequantize(packed.reshape(-1, activation.bytes)).reshape(x.shape)
    w = BLOCK_TYPES[name].dequantize(blocks.reshape(-1, blocks.shape[2])).reshape(len(blocks), -1)
    magnitude = abs(a.astype(np.float64)) @ abs(w.T.astype(np.float64))
    distance = abs(theirs.product(vectorised, name, packed, blocks) - linear_quantized(x, blocks, name))
    assert (distance <= 2 * 2.0**-24 * magnitude).all(), (distance / magnitude).max() * 2**24
