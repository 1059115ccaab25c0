"""What a command writes takes the place of no input, and is what its name says."""

import io
import os
import sys

import numpy as np
import pytest
import tiny_models as tiny
from safetensors.numpy import load_file
from typer.testing import CliRunner

from refsd.cli import app, main
from refsd.files.writers import Spec, write_gguf, write_safetensors
from refsd.golden import dumps
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import stored


def call(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args])


def refused(said, *args):
    result = call(*args)
    assert isinstance(result.exception, BadInput), result.output
    assert said in str(result.exception)
    assert "\n" not in str(result.exception)


def written(path, arrays, write=write_safetensors, *more):
    tensors = {name: stored(array) for name, array in arrays.items()}
    write(path, {name: Spec(t.type, t.shape) for name, t in tensors.items()}, tensors.values(), *more)
    return path


@pytest.fixture
def gguf(tmp_path):
    return written(tmp_path / "a.gguf", {"w": np.float32([[1, 2]]), "v": np.float16([3])}, write_gguf, "sd1")


def forward(tmp_path, *more):
    model = tmp_path / "model.safetensors"
    tensors = tiny.checkpoint()
    write_safetensors(model, {name: Spec(t.type, t.shape) for name, t in tensors.items()}, tensors.values())
    arrays = {name: np.asarray(x) for name, x in tiny.inputs()["vae-decoder"].items()}
    inputs = written(tmp_path / "in.safetensors", arrays)
    return ["forward", model, "--component", "vae-decoder", "-i", inputs, *more]


def test_dequant_does_not_eat_its_input(gguf, tmp_path):
    before = gguf.read_bytes()
    os.link(gguf, tmp_path / "hard.npz")
    (tmp_path / "soft.safetensors").symlink_to(gguf)
    for name in ("hard.npz", "soft.safetensors"):
        refused("an input of this very run", "dequant", gguf, "-o", tmp_path / name)
    gguf.rename(tmp_path / "b.safetensors")
    refused("an input of this very run", "dequant", tmp_path / "b.safetensors", "-o", tmp_path / "b.safetensors")
    assert (tmp_path / "b.safetensors").read_bytes() == before


@pytest.mark.parametrize("flag", ["-o", "--taps"])
@pytest.mark.parametrize("name", ["model.safetensors", "in.safetensors"])
def test_forward_does_not_eat_its_inputs(tmp_path, flag, name):
    more = [flag, tmp_path / name] + ([] if flag == "-o" else ["-o", tmp_path / "out.safetensors"])
    args = forward(tmp_path, *more)
    before = (tmp_path / name).read_bytes()
    refused("an input of this very run", *args)
    assert (tmp_path / name).read_bytes() == before and not (tmp_path / "out.safetensors").exists()


@pytest.mark.parametrize(
    "command",
    ["conform refsd --cases silu/* --json", "conform refsd --junit", "bench kernels --json"],
)
def test_no_file_goes_to_standard_output(gguf, monkeypatch, command):
    monkeypatch.chdir(gguf.parent)
    refused("-: refsd writes files, and no file to standard output: name one", *command.split(), "-")
    assert not (gguf.parent / "-").exists()


def test_forward_writes_two_files_for_two_flags(tmp_path):
    out = tmp_path / "out.safetensors"
    refused("--out and --taps name the same file", *forward(tmp_path, "-o", out, "--taps", out))


@pytest.mark.parametrize("name", ["x.gguf", "x.bin", "x.ckpt", "x", "x.txt"])
def test_a_name_of_another_format_is_refused(gguf, tmp_path, name):
    said = f"{name}: refsd writes tensors to .safetensors, .npz or .npy"
    for args in (["dequant", gguf], ["noise"], forward(tmp_path)):
        refused(said, *args, "-o", tmp_path / name)
    refused(said, *forward(tmp_path, "-o", tmp_path / "out.npz"), "--taps", tmp_path / name)
    assert not (tmp_path / name).exists() and not (tmp_path / "out.npz").exists()


def test_what_a_format_cannot_hold_is_refused_before_anything_is_computed(gguf, tmp_path):
    refused(".npy holds one tensor, and there are 2", "dequant", gguf, "-o", tmp_path / "a.npy")
    args = forward(tmp_path, "--numerics", "torch-bf16", "-o", tmp_path / "a.npz")
    refused("a.npz: NumPy's files have no bf16; name a .safetensors file", *args)
    refused(".npy holds one tensor", *forward(tmp_path, "-o", tmp_path / "a.npz", "--taps", tmp_path / "a.npy"))


def test_npz_and_npy_are_what_they_say(gguf, tmp_path):
    for name in ("a.npz", "a.safetensors"):
        assert call("dequant", gguf, "-o", tmp_path / name).exit_code == 0
    expected = load_file(tmp_path / "a.safetensors")
    with np.load(tmp_path / "a.npz") as theirs:
        for name, array in expected.items():
            assert theirs[name].dtype == array.dtype
            np.testing.assert_array_equal(theirs[name], array)
    ours = dumps.read(tmp_path / "a.npz")
    assert {name: array.tobytes() for name, array in ours.items()} == {n: a.tobytes() for n, a in expected.items()}
    for name in ("n.npy", "n.npz", "n.safetensors"):
        assert call("noise", "--shape", "1x2x3x4", "-o", tmp_path / name).exit_code == 0
    noise = load_file(tmp_path / "n.safetensors")["noise"]
    np.testing.assert_array_equal(np.load(tmp_path / "n.npy"), noise)
    np.testing.assert_array_equal(np.load(tmp_path / "n.npz")["noise"], noise)
    first = (tmp_path / "n.npz").read_bytes()
    assert call("noise", "--shape", "1x2x3x4", "-o", tmp_path / "n.npz").exit_code == 0
    assert (tmp_path / "n.npz").read_bytes() == first


def test_devices_and_pipes_stay_what_they_are(gguf, tmp_path):
    (tmp_path / "null.safetensors").symlink_to("/dev/null")
    os.mkfifo(tmp_path / "pipe.safetensors")
    for name, what in (("null", "a device"), ("pipe", "a pipe")):
        for args in (["dequant", gguf], ["noise"], ["weights", "make", "sd15", "--tiny"], forward(tmp_path)):
            said = f"{name}.safetensors: {what}; refsd writes whole files only"
            refused(said, *args, "-o", tmp_path / f"{name}.safetensors")
    assert (tmp_path / "pipe.safetensors").is_fifo() and not os.path.isfile("/dev/null")


def test_bench_looks_at_its_output_before_it_measures(tmp_path):
    model = written(tmp_path / "model.safetensors", {"w": np.zeros(1)})
    for what in ("unet", "kernels"):
        refused("an input of this very run", "bench", what, "--model", model, "--json", model)


def test_main_knows_a_run_from_the_next(gguf, tmp_path, capsys, monkeypatch):
    """The file that one command has read is another's to write."""
    for args, code in ((["dequant", gguf, "-o", tmp_path / "b.npz"], 0), (["noise", "-o", tmp_path / "b.npz"], 0)):
        monkeypatch.setattr(sys, "argv", ["refsd", *map(str, args)])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == code, capsys.readouterr()
    assert list(np.load(io.BytesIO((tmp_path / "b.npz").read_bytes()))) == ["noise"]
