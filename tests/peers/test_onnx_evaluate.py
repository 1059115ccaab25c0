"""Graphs of others in float64: ONNX's own node tests, and modules of diffusers that torch exported."""

import math
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from float64_peers import float64_throughout
from onnx import TensorProto, numpy_helper
from onnx.backend.test.case.node import collect_testcases

from refsd.module import Taps
from refsd.onnx.evaluate import evaluate, open_graph
from refsd.onnx.evaluate.check import check
from refsd.onnx.evaluate.file import Model

pytestmark = pytest.mark.peer

# ONNX's node tests whose answer is another by rule, or that refsd refuses.
OTHERS = re.compile(
    r"bernoulli|training_mode|bitcast|with_argmax|string|dropout.*_ratio|train_dropout|"  # random, bits, words
    r"dynamicquantizelinear|"  # float32 rounds its scale across a tie
    r"sce_NCd1d2d3_sum_weight_high_ii|quantizelinear_blocked_symmetric|sequence|optional|identity_opt"
)


def test_the_node_tests_of_onnx():
    """1500 graphs of one node. Numbers as their own tolerance; bfloat16 and 8-bit results as their type rounds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    run, wrong = 0, []
    for case in cases:
        model = Model(Path("folder/model.onnx"), case.model)
        tensors = all(isinstance(x, np.ndarray) for inputs, _ in case.data_sets for x in inputs)
        if OTHERS.search(case.name) or not tensors:
            continue
        try:
            check(model)
        except Exception as error:
            assert "does not run this operator" in str(error) or "no tensor of numbers" in str(error), case.name
            continue
        for inputs, outputs in case.data_sets:
            names = [value.name for value in case.model.graph.input]
            found = evaluate(model, dict(zip(names, inputs, strict=False)))
            run += 1
            for y, other in zip(found.outputs.values(), outputs, strict=True):
                if not agrees(y, np.asarray(other), case):
                    wrong.append(case.name)
    assert not wrong, sorted(set(wrong))
    assert run > 1300


def agrees(y, other, case) -> bool:
    if y.shape != other.shape:
        return False
    if other.dtype.kind in "iub":
        return np.array_equal(y.astype(other.dtype), other)
    narrow = other.dtype.itemsize < 4 or "bf16" in case.name or "bfloat16" in case.name
    y, other = np.asarray(y, np.float64), np.asarray(other, np.float64)
    rtol, atol = max(case.rtol or 1e-3, 1e-2 * narrow), max(case.atol or 1e-7, 1e-2 * narrow, 1e-6)
    return np.allclose(y, other, rtol=rtol, atol=atol, equal_nan=True)


def exported(module, inputs: dict, tmp_path, dynamo: bool, exact=()):
    """Export a module, evaluate the graph -> the largest relative L2 error against torch's float64.

    exact: constants in float64 that the exporter rounded to float32; they are put in, each at least once
    """
    module = module.double().eval()
    for part in module.modules():  # an attribute of ONNX is a float32
        for name in ("eps", "epsilon", "variance_epsilon"):
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, float(np.float32(getattr(part, name))))
    arguments = {name: x.double() if x.is_floating_point() else x for name, x in inputs.items()}
    path = tmp_path / "model.onnx"
    with float64_throughout(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        truth = module(*arguments.values())
        torch.onnx.export(
            module, tuple(arguments.values()), str(path), dynamo=dynamo, opset_version=20 if dynamo else 17,
            input_names=list(arguments), verbose=False,
        )  # fmt: skip
    truths = [y.numpy() for y in (truth if isinstance(truth, tuple) else (truth,))]
    model, taps = open_graph(path), Taps(ops=True)
    mend(model.proto.graph, exact)
    named = dict(zip([i.name for i in model.proto.graph.input], arguments.values(), strict=True))
    found = evaluate(model, {name: x.numpy() for name, x in named.items()}, taps)
    assert len(taps) >= len(model.proto.graph.node)
    pairs = zip(found.outputs.values(), truths, strict=True)
    return max(np.linalg.norm(y - right) / np.linalg.norm(right) for y, right in pairs)


def mend(graph, exact):
    """Put constants of float64 in where the graph has them as float32 rounds them, in a tensor of float64."""
    for right in (np.asarray(y, np.float64) for y in exact):
        rounded = [
            (tensor, y)
            for tensor in graph.initializer
            if tensor.data_type == TensorProto.DOUBLE and math.prod(tensor.dims) == right.size
            for y in [numpy_helper.to_array(tensor)]
            if 1e-9 < np.abs(y.ravel() / right.ravel() - 1).max() < 2e-7
        ]
        assert rounded, f"the exporter keeps {right.ravel()[-1]} in float64 now: leave it out of EXPORTS"
        for tensor, y in rounded:
            tensor.CopyFrom(numpy_helper.from_array(right.reshape(y.shape), tensor.name))


class Whole(torch.nn.Module):
    """A module that gives a tuple of tensors, as an exporter wants it."""

    def __init__(self, module, inputs, method="forward", **fixed):
        super().__init__()
        self.module, self.names, self.method, self.fixed = module, list(inputs), method, fixed

    def forward(self, *values):
        named = dict(zip(self.names, values, strict=True))
        return getattr(self.module, self.method)(**named, **self.fixed)


def unet():
    from diffusers import UNet2DConditionModel

    module = UNet2DConditionModel(
        sample_size=8, block_out_channels=(32, 64), layers_per_block=1, cross_attention_dim=32,
        attention_head_dim=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )  # fmt: skip
    inputs = {
        "sample": torch.randn(1, 4, 8, 8),
        "timestep": torch.tensor([500.0]),
        "encoder_hidden_states": torch.randn(1, 7, 32),
    }
    return Whole(module, inputs, return_dict=False), inputs


def vae():
    from diffusers import AutoencoderKL

    module = AutoencoderKL(
        block_out_channels=(32, 32), down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2, norm_num_groups=8, latent_channels=4,
    )  # fmt: skip
    inputs = {"z": torch.randn(1, 4, 6, 5)}
    return Whole(module, inputs, "decode", return_dict=False), inputs


def flux_block():
    from diffusers.models.transformers.transformer_flux import FluxTransformerBlock

    angle = torch.randn(12, 16)
    module = FluxTransformerBlock(64, 4, 16)
    inputs = {
        "hidden_states": torch.randn(1, 8, 64),
        "encoder_hidden_states": torch.randn(1, 4, 64),
        "temb": torch.randn(1, 64),
    }
    return Whole(module, inputs, image_rotary_emb=(angle.cos().double(), angle.sin().double())), inputs


def clip():
    from transformers import CLIPTextConfig, CLIPTextModel

    config = CLIPTextConfig(
        vocab_size=99,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        eos_token_id=98,
    )
    module = CLIPTextModel(config)
    module.set_attn_implementation("eager")
    inputs = {"input_ids": torch.randint(0, 99, (1, 9))}
    return Whole(module, inputs, return_dict=False), inputs


# Constants that the dynamo exporter computes in float32, though the module is of float64: the frequencies of the
# timestep; of CLIP the scale of the scores, and quick GELU's factor. With the right ones the graph is torch's
# float64 run; without them it is 1e-7 and 6e-9 off.
FREQUENCIES = np.exp(-np.log(10000.0) * np.arange(16) / 16)
EXPORTS = [
    (unet, False, ()), (vae, False, ()), (clip, False, ()),
    (vae, True, ()), (flux_block, True, ()), (unet, True, (FREQUENCIES,)), (clip, True, (8**-0.5, 1.702)),
]  # fmt: skip


@pytest.mark.parametrize(("make", "dynamo", "exact"), EXPORTS)
def test_what_torch_exports_of_diffusers_modules(tmp_path, make, dynamo, exact):
    torch.manual_seed(0)
    assert exported(*make(), tmp_path, dynamo, exact) < 1e-12
