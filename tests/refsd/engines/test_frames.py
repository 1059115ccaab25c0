import io

import ml_dtypes
import numpy as np
import pytest

from refsd.engines.frames import read_message, write_message
from refsd.numerics.tensor import StoredTensor, stored


def test_round_trip():
    tensors = {
        "x": stored(np.arange(6, dtype=np.float32).reshape(2, 3)),
        "half": stored(np.ones((1, 2), ml_dtypes.bfloat16)),
        "ids": stored(np.array([[3, 1]])),
        "none": stored(np.zeros((0, 4), np.float32)),
        "blocks": StoredTensor("q8_0", (2, 32), np.arange(68, dtype=np.uint8)),
    }
    stream = io.BytesIO()
    write_message(stream, {"op": "linear"}, tensors)
    write_message(stream, {"op": "silu"}, {})
    stream.seek(0)
    header, read = read_message(stream)
    assert header == {"op": "linear"}
    assert list(read) == list(tensors)
    for name, tensor in tensors.items():
        assert read[name][:2] == tensor[:2]
        assert read[name].data.dtype == tensor.data.dtype
        np.testing.assert_array_equal(read[name].data, tensor.data)
    assert read_message(stream) == ({"op": "silu"}, {})


def test_a_view_is_written_in_its_own_order():
    stream = io.BytesIO()
    write_message(stream, {}, {"x": stored(np.arange(6, dtype=np.float32).reshape(2, 3).T)})
    stream.seek(0)
    np.testing.assert_array_equal(read_message(stream)[1]["x"].data, [[0, 3], [1, 4], [2, 5]])


@pytest.mark.parametrize("size", [0, 3, 40, -1])
def test_a_stream_that_ends_early(size):
    stream = io.BytesIO()
    write_message(stream, {}, {"x": stored(np.zeros(3, np.float32))})
    with pytest.raises(EOFError):
        read_message(io.BytesIO(stream.getvalue()[:size]))
