"""An engine for `refsd conform "exec:python3 engine.py"`, in NumPy alone. With --bug it answers wrongly.

The protocol: refsd/engines/exec/protocol.md.
"""

import fnmatch
import itertools
import json
import sys

import numpy as np
from safetensors.numpy import load_file, save_file

BUG = "--bug" in sys.argv


def linear(t, p):
    y = t["x"].astype(np.float32) @ t["weight"].astype(np.float32).T
    return y + t["bias"] if "bias" in t else y


def gelu_tanh(t, p):
    x = t["x"]
    cubic = 0.0 if BUG else 0.044715
    return 0.5 * x * (1 + np.tanh(np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(cubic) * x**3)))


def silu(t, p):
    return t["x"] / (1 + np.exp(-t["x"]))


def softmax(t, p):
    x = t["x"] * np.float32(p["scale"])
    if "mask" in t:
        x = x + t["mask"].astype(np.float32)
    if "sinks" in t:
        x = np.concatenate([x, np.broadcast_to(t["sinks"][:, None, None], (*x.shape[:-1], 1))], -1)
    e = np.exp(x - x.max(-1, keepdims=True))
    y = e / e.sum(-1, keepdims=True)
    return y[..., :-1] if "sinks" in t else y


def layer_norm(t, p):
    x = t["x"]
    x = x - x.mean(-1, keepdims=True)
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(0 if BUG else p["eps"]))
    return y * t.get("weight", np.float32(1)) + t.get("bias", np.float32(0))


def upsample_nearest(t, p):
    factor = p["factor"]
    return t["x"].repeat(factor, -1).repeat(factor, -2)


def karras(n):
    betas = np.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2
    kept = np.cumprod(1 - betas)
    sigmas = np.sqrt((1 - kept) / kept)
    most, least = sigmas[-1] ** (1 / 7), sigmas[0] ** (1 / 7)
    return np.append(np.linspace(most, least, n) ** 7, 0).astype(np.float32)


def stage_sigmas(t, p):
    """k-diffusion's schedules of Stable Diffusion's levels; the network is told a real timestep between them."""
    n, i = p["steps"], np.arange(1000)
    betas = np.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2
    log = np.log(1 / np.cumprod(1 - betas) - 1) / 2
    if p["schedule"] == "karras":
        sigmas = karras(n)
    else:
        sigmas = np.append(np.exp(np.interp(np.linspace(999, 0, n), i, log)), 0)
    timesteps = np.interp(np.log(sigmas[:-1]), log, i)
    return {"sigmas": sigmas, "timesteps": np.rint(timesteps) if BUG else timesteps}


def stage_guidance(t, p):
    cond, uncond = t["cond"], t["uncond"]
    if p["form"] == "pix2pix":
        y = uncond + p["other_scale"] * (t["other"] - uncond) + p["scale"] * (cond - t["other"])
    else:
        y = uncond + p["scale"] * (cond - uncond)
    return {"guided": y}


def trajectory(t, p):
    """Euler, or Euler ancestral with fresh noise in each step but the last; every call of the model is kept."""
    sigmas = karras(p["steps"])[: p.get("end_at_step", p["steps"]) + 1]
    eta = np.float32(p.get("eta", 0) if not BUG else 0)
    x, draws = t["noise"][0] * sigmas[0], iter(t["noise"][1:])
    shown, answers = [], []
    for sigma, after in itertools.pairwise(sigmas):
        uncond = x / (1 + sigma**2)
        s = sigma**2 + np.float32(0.25)
        cond = (x / 4 + sigma**2 * np.tanh(x / s)) / s
        denoised = uncond + np.float32(p["guidance"]) * (cond - uncond)
        shown.append(x)
        answers.append(denoised)
        up = min(after, eta * np.sqrt(after**2 * (sigma**2 - after**2)) / sigma)
        down = np.sqrt(after**2 - up**2)
        x = x + (x - denoised) / sigma * (down - sigma)
        if up > 0:
            x = x + up * next(draws)
    return {"sigmas": sigmas, "x": np.stack(shown), "denoised": np.stack(answers), "latent": x}


def conv3x3(x, weight, bias):
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), (2, 3))
    return np.einsum("nchwrs,kcrs->nkhw", windows, weight, optimize=True) + bias[:, None, None]


def esrgan(t, p):
    """A whole model: the weights come in a file, under the names of the original."""
    weights = load_file(p["model"]["file"])

    taps, forced = {}, p["forced"]

    def conv(name, x):
        taps[name] = conv3x3(x, weights[f"{name}.weight"], weights[f"{name}.bias"])
        return forced.get(name, taps[name])

    def leaky(x):
        return np.where(x >= 0, x, np.float32(0.1 if BUG else 0.2) * x)

    def dense(at, x):
        outs = [x]
        for k in (1, 2, 3, 4):
            outs.append(leaky(conv(f"{at}.conv{k}", np.concatenate(outs, 1))))
        return x + np.float32(0.2) * conv(f"{at}.conv5", np.concatenate(outs, 1))

    first = x = conv("conv_first", t["x"])
    for i in range(sum(name.endswith("rdb1.conv1.bias") for name in weights)):
        h = x
        for j in (1, 2, 3):
            h = dense(f"body.{i}.rdb{j}", h)
        x = x + np.float32(0.2) * h
    x = first + conv("conv_body", x)
    for name in ("conv_up1", "conv_up2"):
        x = leaky(conv(name, x.repeat(2, -1).repeat(2, -2)))
    return {"out": conv("conv_last", leaky(conv("conv_hr", x)))}, taps


OPS = {f.__name__: f for f in (linear, gelu_tanh, silu, softmax, layer_norm, upsample_nearest, trajectory)}
OPS |= {"model/esrgan": esrgan, "stage/sigmas": stage_sigmas, "stage/guidance": stage_guidance}


def describe():
    description = {
        "protocol": 1,
        "name": "numpy-example",
        "version": "1.0",
        "numerics": "float32",
        "serve": True,
        "ops": {op: {"types": ["f32", "f16"]} for op in OPS},
    }
    description["ops"]["model/esrgan"] |= {"taps": True, "forced": True}
    description["ops"]["trajectory"] = {"samplers": ["euler", "euler_a"], "schedules": ["karras"]}
    of_sigmas = {"engine": ["k-diffusion", "sdcpp"], "levels": ["sd"], "schedule": ["discrete", "karras"]}
    description["ops"]["stage/sigmas"]["params"] = of_sigmas | {"strength": [1.0]}
    description["ops"]["stage/guidance"]["params"] = {"form": ["cfg", "pix2pix"]}
    return description


def run(request):
    forced = load_file(request["forced"]) if "forced" in request else {}
    params = {**request["params"], "model": request.get("model"), "forced": forced}
    answer = OPS[request["op"]](load_file(request["inputs"]), params)
    answer, taps = answer if isinstance(answer, tuple) else (answer, {})
    if "taps" in request:  # what was computed on the way
        wanted = fnmatch.filter(taps, request.get("tap_names", "*"))
        save_file({name: np.ascontiguousarray(taps[name]) for name in wanted}, request["taps"])
    answers = answer if isinstance(answer, dict) else {"y": answer}
    save_file({name: np.ascontiguousarray(y, np.float32) for name, y in answers.items()}, request["output"])
    print(json.dumps({"done": request["case"]}), flush=True)


for line in sys.stdin:  # one request a line, until refsd closes the pipe
    request = json.loads(line)
    if request["request"] == "describe":
        with open(request["output"], "w") as file:
            json.dump(describe(), file)
    else:
        run(request)
