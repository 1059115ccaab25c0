"""NF4 and FP4 files as bitsandbytes saves them, expanded as it expands them, bit for bit."""

import bitsandbytes.functional as peer
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from refsd.files.formats import open_weights
from refsd.judges.stage import StageJudge
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64
from refsd.stages import STAGES

pytestmark = pytest.mark.peer


def saved(path, weight, **settings):
    codes, state = peer.quantize_4bit(weight, **settings)
    save_file({"a.weight": codes} | {f"a.weight.{k}": v for k, v in state.as_dict(packed=True).items()}, path)
    return codes, state


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize(("shape", "blocksize"), [((48, 320), 64), ((7, 4096), 128), ((9, 64), 32)])
def test_it_is_expanded_as_there(tmp_path, kind, nested, shape, blocksize):
    """Whole blocks a row: their CPU kernel counts blocks from the beginning of each row, the CUDA one does not."""
    weight = torch.from_numpy(np.random.default_rng(1).standard_normal(shape).astype(np.float32))
    settings = {"quant_type": kind, "compress_statistics": nested, "blocksize": blocksize}
    codes, state = saved(tmp_path / "a.safetensors", weight, **settings)
    want = peer.dequantize_4bit(codes, state).numpy()
    got = open_weights(tmp_path / "a.safetensors")["a.weight"]
    assert (got.type, got.shape) == (kind, shape)
    # By value: whether FP4's second zero is -0 depends on the CPU there.
    np.testing.assert_array_equal(got.values(), want, strict=True)
    assert np.abs(want - weight.numpy()).max() < 0.7, "else it would have expanded something else"


@pytest.mark.parametrize("shape", [(6, 160), (5, 33), (60, 16, 3, 3)])
def test_blocks_go_on_from_row_to_row(tmp_path, shape):
    """As on CUDA; their definition in Python is asked where the CPU kernel differs."""
    from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
    from bitsandbytes.backends.utils import _get_4bit_code

    weight = torch.from_numpy(np.random.default_rng(2).standard_normal(shape).astype(np.float32))
    codes, state = saved(tmp_path / "a.safetensors", weight, quant_type="nf4", compress_statistics=False)
    table = _get_4bit_code("nf4", codes.device)
    flat = codes.reshape(-1)
    want = _dequantize_4bit_compute(flat, state.absmax, table, state.blocksize, shape, torch.float32).numpy()
    assert open_weights(tmp_path / "a.safetensors")["a.weight"].values().tobytes() == want.tobytes()


@pytest.mark.parametrize("label", ["nf4", "fp4", "nf4-nested"])
def test_the_stages_cases(label):
    """By their definitions in Python, of float32 scales."""
    from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
    from bitsandbytes.backends.utils import _get_4bit_code

    (case,) = (one for one in STAGES["stage/weights"].cases if one.name == f"stage/weights/{label}")
    inputs, p = case.realize(), case.params
    t = {name: torch.from_numpy(tensor.values()) for name, tensor in inputs.items()}
    absmax = t["absmax"]
    if "nested_map" in t:
        codes = absmax.to(torch.uint8)
        absmax = peer.dequantize_blockwise(codes, absmax=t["nested_absmax"], code=t["nested_map"], blocksize=256)
        absmax = absmax + p["offset"]
    table = _get_4bit_code(p["kind"], absmax.device)
    codes, shape = t["data"].to(torch.uint8), tuple(p["ne"][::-1])
    want = _dequantize_4bit_compute(codes, absmax, table, p["each"], shape, torch.float32).numpy()
    found = StageJudge().answer(case, inputs, Arithmetic(FLOAT64))["weight"]
    np.testing.assert_allclose(found, want, rtol=1e-6, atol=1e-7)


def test_other_storage(tmp_path):
    weight = torch.from_numpy(np.random.default_rng(3).standard_normal((8, 128)).astype(np.float32))
    codes, state = saved(tmp_path / "a.safetensors", weight, quant_type="nf4", quant_storage=torch.bfloat16)
    want = peer.dequantize_4bit(codes, state).numpy()
    assert open_weights(tmp_path / "a.safetensors")["a.weight"].values().tobytes() == want.tobytes()


def test_int8_layers(tmp_path):
    """The layer is quantized and saved by theirs; the rows are expanded by their own function."""
    from bitsandbytes.nn import Linear8bitLt

    weight = torch.from_numpy(np.random.default_rng(4).standard_normal((12, 96)).astype(np.float32))
    layer = Linear8bitLt(96, 12, bias=False, has_fp16_weights=False)
    layer.load_state_dict({"weight": weight})
    layer.to("cpu")
    layer(torch.zeros(1, 96))
    state = {f"a.{name}": value.contiguous() for name, value in layer.state_dict().items()}
    assert {"a.weight", "a.SCB"} <= state.keys() and state["a.weight"].dtype == torch.int8
    save_file(state, tmp_path / "a.safetensors")
    want = peer.int8_vectorwise_dequant(state["a.weight"], state["a.SCB"]).numpy()
    got = open_weights(tmp_path / "a.safetensors")["a.weight"].values()
    assert got.tobytes() == want.tobytes()
    assert np.abs(want - weight.numpy()).max() < 0.02, "else it would have expanded something else"
