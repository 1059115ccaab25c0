import numpy as np
import pytest
from gguf import GGUFReader
from safetensors import deserialize

from refsd.files.formats import open_weights
from refsd.files.writers import Spec, write_gguf, write_safetensors
from refsd.golden.recipe import Recipe, realize
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import SCALAR_TYPES, StoredTensor, stored


def specs_of(tensors):
    return {name: Spec(t.type, t.shape) for name, t in tensors.items()}


def scalars():
    values = np.arange(6).reshape(2, 3)
    tensors = {f"a.{name}": stored(values.astype(dtype)) for name, dtype in SCALAR_TYPES.items()}
    return tensors | {"näme": stored(np.float32([1.5])), "empty": stored(np.zeros((0, 3), np.float16))}


def test_safetensors_of_every_scalar_type(tmp_path):
    tensors = scalars()
    done = []
    path = tmp_path / "a.safetensors"
    write_safetensors(path, specs_of(tensors), tensors.values(), {"made": "here"}, done.append)
    theirs = dict(deserialize(path.read_bytes()))
    ours = open_weights(path)
    assert ours.metadata == {"format": "pt", "made": "here"}
    assert sum(done) == sum(t.data.nbytes for t in tensors.values())
    for name, tensor in tensors.items():
        assert bytes(theirs[name]["data"]) == ours[name].data.tobytes() == tensor.data.tobytes()
        assert tuple(theirs[name]["shape"]) == tensor.shape


def test_gguf_of_scalars_and_blocks(tmp_path):
    tensors = {n: t for n, t in scalars().items() if t.data.size}
    tensors = {n: t for n, t in tensors.items() if t.type not in ("u8", "bool", "f8_e4m3", "f8_e5m2")}
    tensors["q"] = realize(Recipe((3, 64), "q8_0"), "q")
    path = tmp_path / "a.gguf"
    write_gguf(path, specs_of(tensors), tensors.values(), "sd1")
    for theirs in GGUFReader(path).tensors:
        assert np.asarray(theirs.data).tobytes() == tensors[theirs.name].data.tobytes()
        assert tuple(theirs.shape[::-1]) == tensors[theirs.name].shape
    ours = open_weights(path)
    assert {n: (ours[n].type, ours[n].shape) for n in ours} == specs_of(tensors)


@pytest.mark.parametrize("write", [write_safetensors, lambda *a: write_gguf(*a, "sd1")])
def test_a_file_that_fails_halfway_leaves_the_old_one(tmp_path, write):
    path = tmp_path / "a"
    path.write_text("old")
    good = stored(np.zeros(4, np.float32))

    def tensors():
        yield good
        raise RuntimeError("halfway")

    with pytest.raises(RuntimeError, match="halfway"):
        write(path, {"a": Spec("f32", (4,)), "b": Spec("f32", (4,))}, tensors())
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_types_that_a_format_lacks(tmp_path):
    packed = StoredTensor("q8_0", (32,), np.zeros(34, np.uint8))
    with pytest.raises(BadInput, match=r"safetensors has no q8_0; write a \.gguf file"):
        write_safetensors(tmp_path / "a", specs_of({"a": packed}), [packed])
    flags = stored(np.ones(3, np.bool_))
    with pytest.raises(BadInput, match=r"gguf-py cannot write bool; write a \.safetensors file"):
        write_gguf(tmp_path / "a", specs_of({"a": flags}), [flags], "sd1")
    assert not list(tmp_path.iterdir())
