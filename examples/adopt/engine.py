"""A port of mymodel.py in NumPy alone, wrong with --bug: refsd conform "exec:python3 engine.py" --cases tiny"""

import json
import sys

import numpy as np
from safetensors.numpy import load_file, save_file

EPS = 1e-5 if "--bug" in sys.argv else 1e-6


def conv3x3(x, weight, bias):
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), (2, 3))
    y = np.einsum("nchwrs,kcrs->nkhw", windows, weight, optimize=True) + bias[:, None, None]
    return np.ascontiguousarray(y)  # safetensors writes memory as it lies


def tiny(t):
    taps = {"conv_in": conv3x3(t["x"], t["conv_in.weight"], t["conv_in.bias"])}
    groups = taps["conv_in"].reshape(len(t["x"]), 4, -1)
    mean, var = groups.mean(-1, keepdims=True), groups.var(-1, keepdims=True)
    unit = ((groups - mean) / np.sqrt(var + np.float32(EPS))).reshape(taps["conv_in"].shape)
    taps["norm"] = unit * t["norm.weight"][:, None, None] + t["norm.bias"][:, None, None]
    h = taps["norm"] / (1 + np.exp(-taps["norm"]))
    taps["conv_out"] = conv3x3(h, t["conv_out.weight"], t["conv_out.bias"])
    return {"out": t["x"] + taps["conv_out"]}, taps


request = json.loads(sys.stdin.readline())
if request["request"] == "describe":
    ops = {"model/graph/tiny": {"taps": True}}
    text = {"protocol": 1, "name": "tiny-numpy", "version": "1", "numerics": "float32", "ops": ops}
    with open(request["output"], "w") as file:
        json.dump(text, file)
else:
    answer, taps = tiny(load_file(request["inputs"]))
    save_file(answer, request["output"])
    if "taps" in request:
        save_file(taps, request["taps"])
