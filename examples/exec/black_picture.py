"""An engine for docs/verdict.md: its GroupNorm sums squares in float16, and pictures lose contrast.

refsd conform "exec:python3 examples/exec/black_picture.py" --cases sd15/vae-decoder/outliers

The rest of it is refsd's own decoder, so that the one mistake stands alone.
"""

import json
import sys

import numpy as np
from safetensors.numpy import load_file, save_file

from refsd.components import forward, load
from refsd.module import Module, Taps
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import TORCH_F16
from refsd.weights.checkpoint import open_checkpoint


class Engine(Arithmetic):
    def group_norm(self, x, weight, bias, num_groups, eps):
        rows = x.astype(np.float32).reshape(len(x), num_groups, -1)
        centred = rows - rows.mean(axis=2, keepdims=True)
        with np.errstate(over="ignore"):
            half = (centred * centred).astype(np.float16)
            square = np.add.accumulate(half, axis=2, dtype=np.float16)[..., -1:].astype(np.float32)
        y = (centred / np.sqrt(square / rows.shape[2] + np.float32(eps))).reshape(x.shape)
        return self._round(y * weight[:, None, None] + bias[:, None, None])

    def group_norm_silu(self, x, weight, bias, num_groups, eps):
        return self.silu(self.group_norm(x, weight, bias, num_groups, eps))


def decode(request):
    m, params = load(open_checkpoint(request["model"]["file"]), "vae-decoder", Engine(TORCH_F16))
    taps = Taps(ops=True)
    decoder = Module(m.weights, m.arithmetic, taps=taps)
    outputs = forward("vae-decoder", decoder, load_file(request["inputs"]), {**params, **request["params"]}, "")
    for tensors, path in ((outputs, request["output"]), (taps, request.get("taps"))):
        if path:
            save_file({name: np.ascontiguousarray(y, np.float32) for name, y in tensors.items()}, path)


request = json.loads(sys.stdin.readline())
if request["request"] == "describe":
    offer = {"model/vae-decoder": {"numerics": "torch-f16", "taps": True}}
    description = {"protocol": 1, "name": "black-picture", "version": "1", "ops": offer}
    with open(request["output"], "w") as file:
        json.dump(description, file)
else:
    decode(request)
