import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from refsd.cli import app
from refsd.files.writers import Spec, write_gguf
from refsd.golden.recipe import SCALE_FIELDS, Recipe, realize
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import stored


@pytest.fixture
def path(tmp_path):
    tensors = {name: realize(Recipe((3, 512), name), name) for name in SCALE_FIELDS if name != "q2_0"}
    tensors |= {"f16": stored(np.float16([[1, np.inf]])), "f32": stored(np.float32([3e38, np.nan]))}
    write_gguf(tmp_path / "a.gguf", {n: Spec(t.type, t.shape) for n, t in tensors.items()}, tensors.values(), "sd1")
    return tmp_path / "a.gguf"


def run(*args):
    return CliRunner().invoke(app, ["dequant", *map(str, args)])


def test_f32_is_gguf_py_bit_for_bit(path, tmp_path):
    result = run(path, "-o", tmp_path / "a.safetensors")
    assert (result.exit_code, result.output) == (0, "")
    ours = load_file(tmp_path / "a.safetensors")
    theirs = gguf.GGUFReader(path).tensors
    assert set(ours) == {t.name for t in theirs}
    for tensor in theirs:
        data = np.asarray(tensor.data)
        if tensor.name == "q1_0":
            data = realize(Recipe((3, 512), "q1_0"), "q1_0").values()
        elif tensor.tensor_type.name not in ("F16", "F32"):
            data = gguf.dequantize(data, tensor.tensor_type)
        assert ours[tensor.name].dtype == data.dtype and ours[tensor.name].shape == data.shape
        assert ours[tensor.name].tobytes() == data.tobytes()


def test_f16_is_rounded_and_leaves_other_tensors(path, tmp_path):
    assert run(path, "-o", tmp_path / "a.safetensors", "--type", "f16").exit_code == 0
    ours = load_file(tmp_path / "a.safetensors")
    assert ours["f32"].dtype == np.float32
    q8_0 = realize(Recipe((3, 512), "q8_0"), "q8_0").values()
    assert ours["q8_0"].tobytes() == q8_0.astype(np.float16).tobytes()


def test_what_cannot_be_done_is_one_line(tmp_path):
    big = realize(Recipe((2, 32), "q8_0", exponent=5), "big")
    path = tmp_path / "a.gguf"
    write_gguf(path, {"big": Spec(big.type, big.shape)}, [big], "sd1")
    for args, says in (
        ((path, "-o", tmp_path / "b.safetensors", "--type", "f16"), 'a.gguf: tensor "big": values beyond 65504'),
        ((tmp_path / "none.gguf", "-o", tmp_path / "b.safetensors"), "none.gguf: cannot read the file"),
        ((path, "-o", path / "b.safetensors"), "b.safetensors: its folder cannot be made: File exists"),
    ):
        result = run(*args)
        assert isinstance(result.exception, BadInput) and says in str(result.exception)
    assert list(tmp_path.iterdir()) == [path]
