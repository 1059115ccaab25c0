"""8-bit floats with a scale for each block, as transformers writes and expands them: the same bits."""

from types import SimpleNamespace

import numpy as np
import pytest

from refsd.files.formats import open_weights

pytestmark = pytest.mark.peer


@pytest.mark.parametrize("scales", ["float", "ue8m0"])
@pytest.mark.parametrize(("shape", "block"), [((256, 384), 128), ((192, 64), 64), ((64, 96), 32)])
def test_blocks_of_transformers(tmp_path, shape, block, scales):
    import torch
    from safetensors.torch import save_file
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize

    config = SimpleNamespace(weight_block_size=(block, block), scale_fmt=scales)
    tool = SimpleNamespace(quantization_config=config)
    random = torch.Generator().manual_seed(7)
    weight = torch.randn(shape, generator=random) * torch.linspace(0.01, 3, shape[0])[:, None]
    written = Fp8Quantize(tool).convert({"a.weight": weight})
    written = {name: y[0] if isinstance(y, list) else y for name, y in written.items()}
    save_file({name: y.contiguous() for name, y in written.items()}, tmp_path / "a.safetensors")
    expanded = Fp8Dequantize(tool)._dequantize_one(
        written["a.weight"], written["a.weight_scale_inv"], torch.float32
    )
    tensor = open_weights(tmp_path / "a.safetensors")["a.weight"]
    assert (tensor.type, tensor.shape) == ("f8_e4m3", shape)
    assert np.array_equal(tensor.values(), expanded.numpy())
    assert np.abs(tensor.values() - weight.numpy()).max() < 0.1 * weight.abs().max().item()
