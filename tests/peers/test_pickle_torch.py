"""What torch saves is read here bit for bit, in both of its formats; and a model of it computes the same."""

import re
import warnings
from collections import OrderedDict

import numpy as np
import pytest
import tiny_models as tiny
import torch
from record_torch_files import content, tensors
from safetensors.numpy import save_file

from refsd.components import forward, load
from refsd.files.formats import open_weights
from refsd.files.torch_objects import DTYPES
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64
from refsd.numerics.tensor import SCALAR_TYPES
from refsd.weights import open_checkpoint

pytestmark = pytest.mark.peer

FORMATS = {"zip": {}, "legacy": {"_use_new_zipfile_serialization": False}}


@pytest.fixture(params=FORMATS)
def saved(request, tmp_path):
    """An object -> the weights that torch saved of it."""

    def save(value, **more):
        torch.save(value, tmp_path / "a.ckpt", **FORMATS[request.param], **more)
        return open_weights(tmp_path / "a.ckpt")

    return save


def same(weights, want):
    assert weights.keys() == want.keys()
    for name, tensor in want.items():
        got = weights[name]
        assert got.shape == tuple(tensor.shape)
        assert got.data.flags.c_contiguous
        assert got.data.tobytes() == octets(tensor), name


def octets(tensor):
    flat = tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def test_everything_that_the_fixture_records(saved):
    same(saved(content()), tensors())


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol(saved, protocol):
    same(saved(content(), pickle_protocol=protocol), tensors())


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype(saved, name):
    """Those that refsd can read are equal; of the others the header is, and reading says so."""
    raw = torch.from_numpy(np.random.default_rng(3).integers(0, 2, (6, 16), np.uint8))
    whole = raw.view(getattr(torch, name.removeprefix("torch."))) if name != "torch.bool" else raw > 0
    want = {"whole": whole, "view": whole[1::2].t()}
    weights = saved(want)
    if weights.headers["whole"].type in SCALAR_TYPES:
        same(weights, want)
        return
    assert weights.headers["view"].shape == tuple(want["view"].shape)
    assert weights.headers["view"].nbytes == want["view"].numel() * want["view"].element_size()
    with pytest.raises(BadInput, match='tensor "whole": refsd cannot read type'):
        weights["whole"]


def test_the_table_has_every_type_of_elements():
    """What it lacks is packed, quantized or bits without a meaning."""
    found = {str(dtype) for dtype in map(torch.__dict__.get, dir(torch)) if isinstance(dtype, torch.dtype)}
    packed = re.compile(r"torch\.(bits|bit$|q|int[1-7]$|uint[1-7]$|float4|complex32)")
    assert {name for name in found if not packed.match(name)} == DTYPES.keys()


def test_random_views(saved):
    """Slices with steps, permutations, expansions and reshapes, one upon another."""
    rng = np.random.default_rng(5)
    want = {}
    for i in range(200):
        view = torch.randn(tuple(rng.integers(1, 6, rng.integers(0, 5))))
        for _ in range(3):
            if view.ndim and rng.integers(2):
                view = view.permute(*rng.permutation(view.ndim).tolist())
            if view.ndim:
                at = tuple(slice(int(rng.integers(0, 3)), None, int(rng.integers(1, 3))) for _ in view.shape)
                view = view[at]
            if rng.integers(3) == 0:
                view = view.unsqueeze(0).expand(int(rng.integers(1, 4)), *view.shape)
        want[f"{i}"] = view
    same(saved(want), want)


def test_modules_and_optimizers(saved):
    """A state dict has _metadata; an optimizer's is left out."""
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Linear(2, 2).half())
    optimizer = torch.optim.AdamW(module[:2].parameters())
    module[1](module[0](torch.randn(2, 3, 5, 5))).sum().backward()
    optimizer.step()
    state = module.state_dict()
    same(saved(state), state)
    whole = {"model": state, "optimizer": optimizer.state_dict(), "lr": np.float64(3.0), "args": {"a": [1, (2,)]}}
    same(saved(whole), state)
    same(saved({"params": {}, "params_ema": state}), state)
    noted = torch.nn.Parameter(torch.randn(3))
    noted.note = "mine"
    same(saved({"noted": noted, "tensor": noted.data}), {"noted": noted, "tensor": noted})
    parameters = torch.nn.ParameterDict({"*": torch.randn(2, 3)})
    same(saved({"string_to_param": parameters, "step": 3}), {"string_to_param.*": parameters["*"]})


def test_what_is_no_state_dict_is_refused(saved):
    for value, says in (
        (torch.ones(2), "holds a value of type Tensor"),
        ([torch.ones(2)], "holds a value of type list"),
        (torch.nn.Linear(2, 2), r"asks for torch\.nn\.modules\.linear\.Linear \(GLOBAL"),
        ({"w": torch.ones(2).to_sparse()}, r"asks for torch\._utils\._rebuild_sparse_tensor"),
        ({"w": torch.ones(2, dtype=torch.complex64).conj().imag}, "conjugate or negative view"),
    ):
        with pytest.raises(BadInput, match=says):
            saved(value)


def test_torchscript_is_named(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(2)), tmp_path / "a.pt")
    with pytest.raises(BadInput, match="a TorchScript archive"):
        open_weights(tmp_path / "a.pt")


@pytest.fixture(scope="module")
def model():
    return {name: torch.from_numpy(tensor.values().copy()) for name, tensor in tiny.checkpoint().items()}


@pytest.mark.parametrize("format", FORMATS)
def test_a_model_of_it_computes_the_same(model, tmp_path, format):
    save_file({name: tensor.numpy() for name, tensor in model.items()}, tmp_path / "a.safetensors")
    whole = {"state_dict": OrderedDict(model), "global_step": 7, "callbacks": {}, "epoch": 1}
    torch.save(whole, tmp_path / "a.ckpt", **FORMATS[format])
    ours, theirs = open_checkpoint(tmp_path / "a.ckpt"), open_checkpoint(tmp_path / "a.safetensors")
    assert ours.components.keys() == {"unet", "vae", "clip"}
    for component, inputs in tiny.inputs().items():
        if component.startswith("flux"):
            continue
        params = {"num_heads": 4, "eos": 99} if component == "clip" else {}
        answers = []
        for checkpoint in (ours, theirs):
            m, found = load(checkpoint, component, Arithmetic(FLOAT64))
            answers.append(forward(component, m, inputs, {**found, **params}))
        assert answers[0].keys() == answers[1].keys()
        for name, y in answers[0].items():
            np.testing.assert_array_equal(y, answers[1][name])
            assert np.abs(y).max() > 0


def test_scaled_fp8(saved):
    """A state dict of ComfyUI's, saved by torch: the scale joins its weight."""
    weight = torch.linspace(-3, 3, 40).reshape(5, 8).to(torch.float8_e4m3fn)
    scale = torch.tensor(0.3)
    marker = torch.zeros(2, dtype=torch.float8_e4m3fn)
    weights = saved({"a.weight": weight, "a.scale_weight": scale, "scaled_fp8": marker})
    assert list(weights) == ["a.weight"]
    assert (weights["a.weight"].values() == (weight.to(torch.float32) * scale).numpy()).all()
