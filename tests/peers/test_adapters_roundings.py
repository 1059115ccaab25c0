"""PEFT's layers in half precision, as the honest run rounds them."""

import numpy as np
import peft
import pytest
import torch

from refsd.adapters import Adapters, Applied
from refsd.kernels.adapters import LoKr, LoRA
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64, TORCH_BF16, TORCH_F16

pytestmark = pytest.mark.peer

SAME = 0.99  # a sum in another order now and then falls on the other side
NUMERICS = {"bf16": (TORCH_BF16, torch.bfloat16), "f16": (TORCH_F16, torch.float16)}
CONFIGS = {
    "lora": peft.LoraConfig(r=6, lora_alpha=4, init_lora_weights=False, target_modules=["layer"]),
    "lokr": peft.LoKrConfig(
        r=3, alpha=7, init_weights=False, decompose_factor=4, decompose_both=True, target_modules=["layer"]
    ),
    "lokr-full": peft.LoKrConfig(r=99, alpha=70, init_weights=False, decompose_factor=4, target_modules=["layer"]),
}
LAYERS = {
    "linear": (lambda: torch.nn.Linear(48, 64), (2, 33, 48)),
    "conv": (lambda: torch.nn.Conv2d(16, 32, 3, padding=1), (2, 16, 9, 7)),
}


class Net(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)


def values(tensor):
    return tensor.detach().float().numpy()


def adapter_of(layer, kind):
    """The refsd adapter of PEFT's layer."""
    scale = layer.scaling["default"]
    if kind == "lora":
        down, up = (values(getattr(layer, name)["default"].weight) for name in ("lora_A", "lora_B"))
        return LoRA(down, up.reshape(up.shape[:2]), None, scale)

    def factor(name):
        if "default" in getattr(layer, f"lokr_{name}"):
            return values(getattr(layer, f"lokr_{name}")["default"])
        return tuple(values(getattr(layer, f"lokr_{name}_{part}")["default"]) for part in "ab")

    return LoKr(factor("w1"), factor("w2"), scale)


def cast(adapter, dtype):
    """Its factors in another dtype, which they fit."""

    def of(field):
        if isinstance(field, tuple):
            return tuple(map(of, field))
        return field.astype(dtype) if isinstance(field, np.ndarray) else field

    return type(adapter)(*map(of, adapter))


@pytest.mark.parametrize("dtype", NUMERICS)
@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_and_its_adapter(layer, kind, dtype):
    numerics, torch_dtype = NUMERICS[dtype]
    torch.manual_seed(3)
    made, shape = LAYERS[layer]
    model = peft.get_peft_model(Net(made()), CONFIGS[kind]).eval()
    for name, parameter in model.named_parameters():
        parameter.data = torch.randn(parameter.shape) * (0.1 if "base_layer" in name else 0.4)
    model = model.to(torch_dtype)
    inside = model.base_model.model.layer
    base, x = inside.get_base_layer(), torch.randn(shape).to(torch_dtype)
    with torch.no_grad():
        theirs = model(x)

    def run(n):
        a, dtype = Arithmetic(n), n.compute_dtype
        adapters = Adapters({"layer": [Applied(cast(adapter_of(inside, kind), dtype), 1.0)]}, a)
        weight, bias = values(base.weight).astype(dtype), values(base.bias).astype(dtype)
        x_ = a.store(values(x))
        if layer == "linear":
            return adapters.linear("layer", x_, a.linear(x_, weight, bias), weight, bias)
        y = a.conv2d(x_, weight, bias, 1, (1, 1, 1, 1))
        return adapters.conv2d("layer", x_, y, weight, bias, 1, (1, 1, 1, 1))

    ours, truth = run(numerics), run(FLOAT64)
    same = np.mean(np.asarray(ours, np.float32) == values(theirs))
    ratio = np.linalg.norm(ours - truth) / np.linalg.norm(values(theirs) - truth)
    assert same >= SAME and 0.98 < ratio < 1.02, f"{100 * same:.2f} % the same, error {ratio:.3f} times PEFT's"
