"""The findings of docs/ggml.md on the libggml at hand: `python -P benchmarks/ggml_study.py [LIBRARY]`."""

import sys

import numpy as np

from refsd.engines.ggml import engine as ggml
from refsd.engines.ggml.engine import GgmlLibrary
from refsd.kernels.attention import attention
from refsd.kernels.attention_online_f16 import attention_online_f16
from refsd.numerics.tensor import stored

PLAIN = {"scale": None, "causal": False}


def f32(values):
    return stored(np.asarray(values, np.float32))


def qkv(L, J, D, H=1, seed=0):
    rng = np.random.default_rng(seed)
    return {name: f32(rng.standard_normal((1, n, H, D))) for name, n in (("q", L), ("k", J), ("v", J))}


def away(y, truth):
    return np.linalg.norm(y - truth) / np.linalg.norm(truth)


def flash_accuracy(library):
    print("1. relative L2 of ggml_flash_attn_ext, 64 queries (beside it: a float16 running sum, emulated)")
    for D in (40, 48, 64, 80):
        row = []
        for J in (77, 1024, 4096):
            inputs = qkv(64, J, D)
            q, k, v = (inputs[name].data for name in "qkv")
            truth = attention(q.astype(np.float64), k.astype(np.float64), v.astype(np.float64), D**-0.5)
            q16, k16, v16 = (t.astype(np.float16).astype(np.float32) for t in (q, k, v))
            mask, no_sinks = np.zeros((1, 1, 1, 1), np.float32), np.full(q.shape[2], -np.inf, np.float32)
            emulated = attention_online_f16(q16, k16, v16, D**-0.5, mask, no_sinks)
            y = library.compute("attention", PLAIN, inputs, "ggml-flash")
            row.append(f"J {J}: {away(y, truth):.1e} ({away(emulated, truth):.1e})")
        print(f"   D {D}  " + "  ".join(row))


def flash_threads(place):
    one, *others = (GgmlLibrary(place, threads, 60) for threads in (1, 2, 5))
    inputs = qkv(1, 600, 64, H=2)
    y = one.compute("attention", PLAIN, inputs, "ggml-flash")
    apart = [np.abs(other.compute("attention", PLAIN, inputs, "ggml-flash") - y).max() for other in others]
    print(f"2. flash, 1 query, 600 keys: 2 and 5 threads differ from 1 by {apart[0]:.1e}, {apart[1]:.1e}")


def quick_gelu_range(library):
    x = [-1e5, -65520, -65504, 65504, 65520, 1e5]
    print("3. ggml_gelu_quick of", x, "is", library.compute("quick_gelu", {}, {"x": f32([x])})[0].tolist())


def masked_row(library):
    mask = np.zeros((4, 7), np.float32)
    mask[2] = -np.inf
    inputs = {**qkv(4, 7, 40), "mask": f32(mask)}
    plain, fused = (
        library.compute("attention", PLAIN, inputs, name)[0, 2, 0, 0] for name in ("ggml", "ggml-flash")
    )
    print(f"4. a query whose keys are all masked: {plain} by soft_max_ext, {fused} by flash_attn_ext")


def ties(library):
    # 127 and 2.5 in a block: d = 1, and 2.5 lies halfway between two steps.
    x = np.zeros((1, 32), np.float32)
    x[0, 0], x[0, 1] = 127, 2.5
    weight = np.zeros((1, 32), np.float32)
    weight[0, 1] = 127
    blocks = np.concatenate([np.array([1], np.float16).view(np.uint8), weight[0].astype(np.int8).view(np.uint8)])
    inputs = {"x": f32(x), "weight": ggml.StoredTensor("q8_0", (1, 32), blocks)}
    print(f"5. q8_0 rounds an activation of 2.5 steps to {library.compute('linear', {}, inputs)[0, 0] / 127:g}")


def main():
    place = ggml._place(sys.argv[1] if sys.argv[1:] else None)
    if place is None:
        sys.exit("no libggml: give the path of one")
    library = GgmlLibrary(place, 2, 300)
    print(f"ggml {library.version}")
    flash_accuracy(library)
    flash_threads(place)
    quick_gelu_range(library)
    masked_row(library)
    ties(library)
    print(f"6. float32 filters are rounded to float16 by ggml_conv_2d: {library.rounds_f32_patches}")


if __name__ == "__main__":
    main()
