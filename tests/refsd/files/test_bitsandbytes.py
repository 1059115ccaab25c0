"""Weights of 4 bits as bitsandbytes saves them: expanded as it does, or refused by file and tensor."""

import json

import numpy as np
import pytest
from naive.quant import grouped as naive
from safetensors.numpy import save_file

from refsd.files.dequantize import Expansion
from refsd.files.finite import not_finite
from refsd.files.formats import open_weights
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import GROUPED_TYPES

RNG = np.random.default_rng(0)
SHAPE, GROUP = (6, 160), 64
CODES = RNG.integers(0, 256, (480, 1), np.uint8)
ABSMAX = RNG.uniform(0.1, 3, 15).astype(np.float32)
LEVELS = np.sort(RNG.uniform(-1, 1, 256)).astype(np.float32)
STATE = {"quant_type": "nf4", "blocksize": GROUP, "dtype": "bfloat16", "shape": list(SHAPE)}
NESTED_STATE = STATE | {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 1.625}


def text(state):
    return np.frombuffer(json.dumps(state).encode(), np.uint8)


def flat(kind="nf4", **state):
    arrays = {"a.weight": CODES, "a.weight.absmax": ABSMAX, "a.weight.quant_map": GROUPED_TYPES[kind]}
    return arrays | {f"a.weight.quant_state.bitsandbytes__{kind}": text(STATE | {"quant_type": kind} | state)}


def nested(**state):
    return flat() | {
        "a.weight.absmax": np.arange(15, dtype=np.uint8) * 17,
        "a.weight.nested_absmax": np.float32([0.75]),
        "a.weight.nested_quant_map": LEVELS,
        "a.weight.quant_state.bitsandbytes__nf4": text(NESTED_STATE | state),
    }


@pytest.fixture
def opened(tmp_path):
    def write(arrays):
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, tmp_path / "a.safetensors")
        return open_weights(tmp_path / "a.safetensors")

    return write


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_it_is_expanded(opened, kind):
    """Groups go on from row to row: 160 is no multiple of 64."""
    weights = opened(flat(kind) | {"a.bias": np.ones(6, np.float32)})
    assert list(weights) == ["a.bias", "a.weight"]
    tensor = weights["a.weight"]
    assert (tensor.type, tensor.shape) == (kind, SHAPE)
    expected = naive.expand(naive.codes(CODES[:, 0]), GROUPED_TYPES[kind], ABSMAX, GROUP)
    assert tensor.values().tobytes() == expected.astype(np.float32).tobytes()


def test_scales_of_scales(opened):
    tensor = opened(nested())["a.weight"]
    absmax = LEVELS[np.arange(15) * 17].astype(np.float64) * 0.75 + 1.625
    expected = naive.expand(naive.codes(CODES[:, 0]), GROUPED_TYPES["nf4"], absmax, GROUP)
    np.testing.assert_allclose(tensor.values().ravel(), expected, rtol=3e-7)


@pytest.mark.parametrize("shape", [(5, 3), (60, 16, 1, 1), (959,)])
def test_other_shapes(opened, shape):
    """The last byte may hold one code alone; a convolution keeps its shape."""
    n = int(np.prod(shape))
    arrays = flat(shape=list(shape)) | {"a.weight": CODES[: -(-n // 2)]}
    arrays["a.weight.absmax"] = ABSMAX[: -(-n // GROUP)]
    tensor = opened(arrays)["a.weight"]
    expected = naive.expand(naive.codes(CODES[:, 0])[:n], GROUPED_TYPES["nf4"], ABSMAX, GROUP)
    assert tensor.values().shape == shape
    assert (tensor.values().ravel() == expected.astype(np.float32)).all()


@pytest.mark.parametrize(("shape", "packed"), [((6, 160), "f32"), ((15, 64), "nf4")])
def test_some_rows(opened, shape, packed):
    """Whole groups stay packed."""
    tensor = opened(flat(shape=list(shape)))["a.weight"]
    rows = tensor.rows(np.array([4, 0, 5]))
    assert rows.type == packed
    assert (rows.values() == tensor.values()[[4, 0, 5]]).all()


def test_codes_under_another_type(opened):
    """`bnb_4bit_quant_storage`: the same bytes."""
    plain = opened(flat())["a.weight"].values()
    stored = opened(flat() | {"a.weight": CODES.reshape(-1, 4).view(np.float32)})["a.weight"]
    assert (stored.values() == plain).all()


def test_not_finite_and_into_a_file(opened, tmp_path):
    bad = ABSMAX.copy()
    bad[14] = np.inf
    weights = opened(flat() | {"a.weight.absmax": bad})
    zeros = int((naive.codes(CODES[-32:, 0]) == 7).sum())
    assert not_finite(weights["a.weight"]) == 64 and zeros < 64
    path = opened(flat()).path
    Expansion(path).write(tmp_path / "out.safetensors")
    assert (
        open_weights(tmp_path / "out.safetensors")["a.weight"].data == open_weights(path)["a.weight"].values()
    ).all()


def without(arrays, name):
    return {key: array for key, array in arrays.items() if key != name}


REFUSED = {
    "no absmax": (without(flat(), "a.weight.absmax"), '"a.weight.absmax" is missing'),
    "no map": (without(flat(), "a.weight.quant_map"), '"a.weight.quant_map" is missing'),
    "no map of scales": (without(nested(), "a.weight.nested_quant_map"), '"a.weight.nested_quant_map" is missing'),
    "short absmax": (flat() | {"a.weight.absmax": ABSMAX[:-1]}, "f32 [14]; f32 [15] expected"),
    "another map": (flat() | {"a.weight.quant_map": np.linspace(-1, 1, 16, dtype=np.float32)}, "is not nf4's"),
    "another shape": (flat(shape=[6, 161]), "480 bytes; 483 expected for nf4 [6, 161]"),
    "no shape": (flat(shape=None), "has the shape 'None'"),
    "a shape of text": (flat(shape=["6"]), "positive whole numbers expected"),
    "a huge shape": (flat(shape=[2**40, 2**40]), "positive whole numbers expected"),
    "another size of block": (flat(blocksize=63), "blocksize is 63"),
    "another type": (flat(quant_type="fp4"), "quant_type nf4"),
    "no JSON": (
        flat() | {"a.weight.quant_state.bitsandbytes__nf4": np.zeros(3, np.uint8)},
        "is not a JSON object",
    ),
    "endless JSON": (
        flat() | {"a.weight.quant_state.bitsandbytes__nf4": np.zeros(5000, np.uint8)},
        "a short JSON text expected",
    ),
    "no offset": (nested(nested_offset=None), "nested_offset is 'None'"),
    "an infinite offset": (nested(nested_offset=1e400), "nested_offset is 'inf'"),
    "another nesting": (nested(nested_blocksize=128), "nested_blocksize is '128'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(opened, case):
    arrays, says = REFUSED[case]
    with pytest.raises(BadInput) as error:
        opened(arrays)
    assert says in str(error.value) and '"a.weight"' in str(error.value) and "\n" not in str(error.value)


INT8 = {
    "a.weight": RNG.integers(-127, 128, (6, 160)).astype(np.int8),
    "a.SCB": RNG.uniform(0.1, 3, 6).astype(np.float32),
    "a.weight_format": np.zeros((), np.uint8),
}


def test_int8_is_expanded_row_by_row_with_two_roundings(opened):
    weights = opened(INT8)
    assert list(weights) == ["a.weight"]
    products = INT8["a.weight"].astype(np.float32) * INT8["a.SCB"][:, None]
    want = products * np.float32(0.007874015718698502)
    assert weights["a.weight"].values().tobytes() == want.tobytes()
    assert weights["a.weight"].rows(np.array([4, 1])).values().tobytes() == want[[4, 1]].tobytes()
    older = {name: INT8[name] for name in ("a.weight", "a.SCB")}
    assert opened(older)["a.weight"].values().tobytes() == want.tobytes()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"a.SCB": np.ones(5, np.float32)}, r'tensor "a\.weight": its "a\.SCB" is f32 \[5\]; f32 \[6\] expected'),
        ({"a.SCB": np.ones(6, np.float16)}, r'its "a\.SCB" is f16 \[6\]; f32 \[6\] expected'),
        ({"a.weight_format": np.full((), 2, np.uint8)}, r'its "a\.weight_format" is 2; refsd reads 0'),
        ({"a.weight": np.ones((6, 4, 2), np.int8)}, r"shape \[6, 4, 2\] has an SCB; a matrix expected"),
    ],
)
def test_int8_that_does_not_fit_is_refused(opened, change, says):
    with pytest.raises(BadInput, match=says):
        opened(INT8 | change)
