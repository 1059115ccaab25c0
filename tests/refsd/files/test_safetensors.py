"""What the library writes is read; what the format forbids is refused before anything is allocated."""

import json
import re
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from refsd.files.formats import open_weights
from refsd.numerics.errors import BadInput

ONE = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def file_of(path, header, data=b"\0" * 8, length=None):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(raw) if length is None else length).to_bytes(8, "little") + raw + data)
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.safetensors"


@pytest.mark.smoke
def test_reads_what_the_library_writes(path):
    rng = np.random.default_rng(0)
    arrays = {
        "half": rng.standard_normal((3, 5)).astype(np.float16),
        "bf": rng.standard_normal((2, 2, 2)).astype(ml_dtypes.bfloat16),
        "double": rng.standard_normal(3),
        "ids": np.arange(4),
        "scalar": np.array(3, np.float32),
        "empty": np.zeros((0, 4), np.float32),
    }
    save_file(arrays, path, {"made": "here"})
    weights = open_weights(path)
    assert weights.metadata == {"made": "here"}
    assert weights.keys() == arrays.keys()
    for name, array in arrays.items():
        tensor = weights[name]
        assert tensor.shape == weights.headers[name].shape == array.shape
        assert tensor.data.dtype == array.dtype
        np.testing.assert_array_equal(tensor.values(), array)


def test_reads_are_views_of_the_file(path):
    save_file({"a": np.zeros(2**20, np.float32)}, path)
    tracemalloc.start()
    data = open_weights(path)["a"].data
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert not data.flags.writeable
    assert peak < 2**19


def test_data_that_is_not_aligned_is_copied(path):
    header = json.dumps({"a": ONE}).encode()
    raw = header + b" " * (3 - len(header) % 4)
    data = open_weights(file_of(path, raw, np.float32([1, 2]).tobytes()))["a"].data
    assert data.flags.aligned
    np.testing.assert_array_equal(data, [1, 2])


def test_a_type_that_refsd_cannot_read_is_listed(path):
    weights = open_weights(file_of(path, {"w": {"dtype": "F8_E8M0", "shape": [8], "data_offsets": [0, 8]}}))
    assert weights.headers["w"].type == "f8_e8m0"
    with pytest.raises(BadInput, match=r'a\.safetensors: tensor "w": refsd cannot read type f8_e8m0'):
        weights["w"]


def tensor(**changes):
    return {"w": {**ONE, **changes}}


HOSTILE = {
    "header longer than the file": ({"w": ONE}, {"length": 2**40}, "header claims 1099511627776 bytes"),
    "header a little longer": ({"w": ONE}, {"length": 1000}, "header claims 1000 bytes"),
    "header longer than allowed": ({"w": ONE}, {"length": 2**63}, "header claims 9223372036854775808 bytes"),
    "header cut": (b'{"w": {"dty', {}, "not JSON"),
    "not JSON": (b"{'w': 1}", {}, "not JSON"),
    "not an object": (b"[1, 2]", {}, "a JSON list"),
    "nested too deep": (b"[" * 100_000, {}, "not JSON"),
    "not UTF-8": (b'{"\xff\xfe": 1}', {}, "not UTF-8"),
    "half a surrogate": (
        b'{"\\ud800": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}',
        {},
        "not valid Unicode",
    ),
    "a name twice": (b'{"w": %s, "w": %s}' % ((json.dumps(ONE).encode(),) * 2), {}, '"w" twice'),
    "a number with too many digits": (b'{"w": ' + b"9" * 5000 + b"}", {}, "not JSON"),
    "an entry that is no object": ({"w": 3}, {}, "and nothing else"),
    "a field too many": (tensor(more=1), {}, "and nothing else"),
    "a field too few": ({"w": {"dtype": "F32"}}, {}, "and nothing else"),
    "unknown dtype": (tensor(dtype="F33"), {}, "unknown dtype"),
    "dtype of another type": (tensor(dtype=["F32"]), {}, "unknown dtype"),
    "negative size": (tensor(shape=[-2]), {}, "none negative; found"),
    "size as a float": (tensor(shape=[2.0]), {}, "whole numbers"),
    "size as a bool": (tensor(shape=[True, 2]), {}, "whole numbers"),
    "shape as text": (tensor(shape="2"), {}, "whole numbers"),
    "giant size": (tensor(shape=[2**62]), {}, "2.48 elements"),
    "sizes that overflow": (tensor(shape=[2**32, 2**32]), {}, "2.48 elements"),
    "giant but empty": (tensor(shape=[2**62, 0], data_offsets=[0, 0]), {"data": b""}, "2.48 elements"),
    "too many dimensions": (tensor(shape=[2] + [1] * 40), {}, "at most 32"),
    "shape larger than the bytes": (tensor(shape=[3]), {}, "takes 12 bytes"),
    "offsets backwards": (tensor(data_offsets=[8, 0]), {}, "data_offsets give -8"),
    "offsets negative": (tensor(data_offsets=[-8, 0]), {}, "two whole numbers"),
    "one offset": (tensor(data_offsets=[0]), {}, "two whole numbers"),
    "offsets out of range": (tensor(data_offsets=[8, 16]), {}, "hole"),
    "offsets far out of range": (tensor(data_offsets=[2**63, 2**63 + 8]), {}, "hole"),
    "overlap": ({"a": ONE, "b": {**ONE, "data_offsets": [4, 12]}}, {"data": b"\0" * 12}, "overlaps"),
    "same bytes": ({"a": ONE, "b": ONE}, {}, "overlaps"),
    "a hole": ({"a": ONE, "b": {**ONE, "data_offsets": [12, 20]}}, {"data": b"\0" * 20}, "hole"),
    "bytes left over": (
        {"w": ONE},
        {"data": b"\0" * 9},
        "and 1 byte more behind the last one",
    ),
    "bytes missing": ({"w": ONE}, {"data": b"\0" * 7}, "cut short"),
    "metadata that is no text": ({"__metadata__": {"a": 1}, "w": ONE}, {}, "__metadata__"),
    "metadata that is no object": ({"__metadata__": "a", "w": ONE}, {}, "__metadata__"),
    "a name with control codes": ({"\x1b[31m\nred": {**ONE, "dtype": "?"}}, {}, "unknown dtype"),
    "an endless name": ({"n" * 10**6: {**ONE, "dtype": "?"}}, {}, "1000000 characters"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile(path, case):
    header, how, says = HOSTILE[case]
    file_of(path, header, **how)
    tracemalloc.start()
    with pytest.raises(BadInput) as error:
        open_weights(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    message = str(error.value)
    assert message.startswith(f"{path}: ")
    said = message.removeprefix(f"{path}: ")
    assert re.search(says, said)
    assert said.isprintable()
    assert len(said) < 400
    assert peak < 2**23 + 20 * path.stat().st_size


@pytest.mark.parametrize("content", [b"", b"1234567", b"\0" * 8])
def test_too_short(path, content):
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"empty|a text file|zeros"):
        open_weights(path)


def test_a_header_of_too_many_values(path, monkeypatch):
    monkeypatch.setattr("refsd.files.safetensors.MAX_VALUES", 5)
    with pytest.raises(BadInput, match="JSON values"):
        open_weights(file_of(path, {"w": ONE}))


def test_no_such_file(tmp_path):
    with pytest.raises(BadInput, match="No such file"):
        open_weights(tmp_path / "none.safetensors")
    with pytest.raises(BadInput, match="a folder"):
        open_weights(tmp_path)


@pytest.mark.parametrize(
    ("index", "says"),
    [
        ({"weight_map": {"w": "../a.safetensors"}}, "same folder"),
        ({"weight_map": {"w": "/etc/passwd"}}, "same folder"),
        ({"weight_map": {"w": "a.index.json"}}, "same folder"),
        ({"weight_map": {"w": "b.bin"}}, "is not there"),
        ({"weight_map": {"w": "b.safetensors"}}, "is not there"),
        ({"weight_map": {"other": "a.safetensors"}}, "not in the shard"),
        ({"weight_map": {"w": 3}}, "weight_map"),
        ({"weight_map": [1]}, "weight_map"),
        ({}, "weight_map"),
    ],
)
def test_hostile_shards(path, index, says):
    file_of(path, {"w": ONE})
    listed = path.parent / "model.safetensors.index.json"
    listed.write_text(json.dumps(index))
    with pytest.raises(BadInput, match=says):
        open_weights(listed)


def test_shards_are_one_mapping(tmp_path):
    save_file({"a": np.ones(2, np.float32)}, tmp_path / "1.safetensors")
    save_file({"b": np.zeros(3, np.float16)}, tmp_path / "2.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}))
    weights = open_weights(index)
    assert {name: weights[name].type for name in weights} == {"a": "f32", "b": "f16"}
