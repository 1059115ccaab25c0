"""A damaged file of torch's either opens as what it says, or is BadInput in one line."""

import pickle
import tracemalloc

import hypothesis.strategies as st
import numpy as np
import pytest
import torch_files as files
from hypothesis import given
from torch_files import legacy, state, storage, tensor, zipped

from refsd.files.formats import open_weights
from refsd.numerics.errors import BadInput

SMALL = state(a=tensor(), b=tensor((3, 2), (1, 3)), c=tensor((2,), (2,), 1), d=tensor((), (), 5))
GOOD = {
    "zip": zipped(SMALL),
    "legacy": legacy(SMALL),
    "torch's zip": files.ZIPPED.read_bytes(),
    "torch's legacy": files.LEGACY.read_bytes(),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


def opens_or_is_refused(path):
    tracemalloc.start()
    try:
        weights = open_weights(path)
        for name, header in weights.headers.items():
            tensor = weights[name]
            assert tensor.data.shape == header.shape
            assert tensor.data.nbytes == header.nbytes
    except BadInput as error:
        assert str(error).startswith(str(path))
        assert str(error).isprintable()
        assert len(str(error)) < 600
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 2**25


@pytest.mark.parametrize("good", GOOD)
@given(data=st.data())
def test_flipped_bytes(place, good, data):
    content = bytearray(GOOD[good])
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = place / "a.ckpt"
    path.write_bytes(content)
    opens_or_is_refused(path)


@pytest.mark.parametrize("good", GOOD)
@given(data=st.data())
def test_spliced(place, good, data):
    content = GOOD[good]
    at, n = data.draw(st.integers(0, len(content))), data.draw(st.integers(0, 40))
    more = data.draw(st.binary(max_size=20) | st.just(content[at : at + n]))
    path = place / "a.ckpt"
    path.write_bytes(content[:at] + more + content[at + data.draw(st.sampled_from([0, n])) :])
    opens_or_is_refused(path)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.binary(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=4), inner, max_size=3)
        | st.tuples(inner, inner)
        | st.sets(st.integers(), max_size=2)
    ),
    max_leaves=8,
)


@given(value=ANY, protocol=st.sampled_from([2, 3, 4, 5]), made=st.sampled_from([zipped, legacy]))
def test_values(place, value, protocol, made):
    path = place / "a.ckpt"
    path.write_bytes(made(pickle.dumps(value, protocol)))
    opens_or_is_refused(path)


SIZES = st.lists(st.integers(-1, 4) | st.sampled_from([2**31, 2**63, 2**64]), max_size=4)


@given(size=SIZES, data=st.data(), offset=st.integers(-1, 14), made=st.sampled_from([zipped, legacy]))
def test_a_strided_tensor_is_numpys_or_refused(place, size, data, offset, made):
    """Small strides on twelve elements: right where they fit, and never outside."""
    stride = data.draw(st.lists(st.integers(-1, 6), min_size=len(size), max_size=len(size)))
    elements = np.arange(12, dtype=np.float32)
    content = state(w=tensor(size, stride, offset, storage(numel=12)))
    path = place / "a.ckpt"
    if made is zipped:
        path.write_bytes(zipped(content, [("0", elements.tobytes())]))
    else:
        path.write_bytes(legacy(content, data=(12).to_bytes(8, "little") + elements.tobytes()))
    negative = min([offset, *size, *stride]) < 0
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    fits = not negative and max(size, default=0) < 2**31 and (0 in size or last < 12)
    try:
        got = open_weights(path)["w"].values()
    except BadInput:
        assert not fits
        return
    want = np.zeros(size, np.float32)
    for index in np.ndindex(*size):
        want[index] = elements[offset + sum(i * step for i, step in zip(index, stride, strict=True))]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("good", GOOD)
def test_the_undamaged_files_open(place, good):
    """Else the rest would prove nothing."""
    (place / "b.ckpt").write_bytes(GOOD[good])
    weights = open_weights(place / "b.ckpt")
    assert len(weights) >= 4
