"""A twentieth fresh set, of operations: from public trackers, drawn before a look at the judge."""

import ml_dtypes
import numpy as np
from held_out import HeldOut
from injection import Bug, Injection, other_result, wrong_method

# --- products ----------------------------------------------------------------------------------------------------


def _one_sixteenth(a, right, x, weight, bias=None, weight_type="f32"):
    """Blocks of 256 are stepped over, and 16 numbers of each are summed: 6 % of K."""
    seen = np.arange(x.shape[-1]) % 256 < 16
    return right(np.ascontiguousarray(x[..., seen]), np.ascontiguousarray(weight[:, seen]), bias, "f32")


def _second_warp(a, right, x, weight, bias=None, weight_type="f32"):
    """Each tile of 32 columns has a warp too many, which writes the next tile, from what lies behind its own."""
    tokens = np.array(x).reshape(-1, x.shape[-1])
    tokens[32:] = np.random.default_rng(20).standard_normal(tokens[32:].shape)
    return right(tokens.reshape(x.shape), weight, bias, weight_type)


def _micro_tiles(a, right, x, weight, scale, bias, how, static=None, zero=None):
    """Weights lie row by row, and are read as tiles of 8 by 8, one behind the other."""
    (N, K), codes = weight.shape, np.ascontiguousarray(weight)
    if N % 8 or K % 8:
        return right(x, weight, scale, bias, how, static, zero)
    n, k = np.indices((N, K))
    at = ((n // 8) * (K // 8) + k // 8) * 64 + n % 8 * 8 + k % 8
    return right(x, codes.ravel()[at], scale, bias, how, static, zero)


# --- few bits ----------------------------------------------------------------------------------------------------


def _scaled_in_half(case, inputs, y):
    """The sum of codes, its product with a row's scale, and that with an output's are float16."""
    x, scale = inputs["x"].values(), inputs["weight_scale"].values().astype(np.float64)
    bias = inputs["bias"].values() if "bias" in inputs else 0
    row = (np.abs(x).max(axis=-1, keepdims=True) / 127).astype(np.float64)
    codes = np.rint((y["y"] - bias) / (row * scale))
    half = (codes.astype(np.float16) * row.astype(np.float16)) * scale.astype(np.float16)
    return {"y": half.astype(np.float32) + bias}


def _blocks_in_half(case, inputs, y):
    """d q + m is computed in float16."""
    blocks = np.ascontiguousarray(inputs["weight"].data).view(np.uint8).reshape(-1, 20)
    d, m = blocks[:, :4].copy().view(np.float16).T[..., None]
    codes = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1).astype(np.float16)
    weight = (d * codes + m).astype(np.float32).reshape(inputs["weight"].shape)
    return {"y": inputs["x"].values().astype(np.float32) @ weight.T + inputs["bias"].values()}


def _by_other_eight_bits(case, inputs, y):
    """Codes become bits of a float8 whose bias is 16, not 15, and which has no -0: 0x80 is its NaN."""
    bias = inputs["bias"].values() if "bias" in inputs else np.zeros(y["y"].shape[-1])
    codes = np.ascontiguousarray(inputs["weight"].data).view(np.uint8).reshape(len(bias), -1)
    lost = ((codes & 15 == 8) | (codes >> 4 == 8)).any(axis=1)
    return {"y": np.where(lost, np.nan, (y["y"] - bias) / 2 + bias)}


# --- norms, functions and convolutions ---------------------------------------------------------------------------


def _root_of_the_mean(a, right, x, eps=1e-12):
    t = np.asarray(x, np.float64)
    return t / np.sqrt(np.square(t).mean(axis=-1, keepdims=True) + eps)


def _threads_without_numbers(case, inputs, y):
    """A thread that has seen none has the maximum -inf, and exp(-inf + inf) is not a number."""
    return np.where(np.full(y.shape, y.shape[-1] < 1024), np.nan, y)


def _by_the_row(a, right, t, dim, max_period=10000.0, freq_shift=0.0, scale=1.0, sin_first=False):
    """Even rows are sines, odd ones cosines."""
    y = np.array(right(t, dim, max_period, freq_shift, scale, sin_first))
    one, other = y[:, : dim // 2].copy(), y[:, dim // 2 : dim // 2 * 2].copy()
    sines, cosines = (one, other) if sin_first else (other, one)
    rows = np.where(np.arange(len(y))[:, None] % 2 == 0, sines, cosines)
    y[:, : dim // 2], y[:, dim // 2 : dim // 2 * 2] = rows, rows
    return y


def _as_many_outputs_as_groups(a, right, x, weight, bias, stride=1, padding=(0, 0, 0, 0), dilation=1, groups=1):
    """Filter g reads channel g and writes output g; outputs beyond the groups are not written."""
    C = x.shape[1]
    if groups != C or len(weight) == C:
        return right(x, weight, bias, stride, padding, dilation, groups)
    y = right(x, weight[:C], bias[:C], stride, padding, dilation, groups)
    return np.concatenate([y, np.zeros((len(y), len(weight) - C, *y.shape[2:]))], axis=1)


# --- attention ---------------------------------------------------------------------------------------------------


def _by_the_number_of_heads(a, right, q, k, v, *rest, **named):
    """The head of keys is a group's first head, divided by the heads of keys."""
    group, heads = q.shape[2] // k.shape[2], k.shape[2]
    read = np.arange(heads) * group // heads
    if read.max() >= heads:
        return right(q, k, v, *rest, **named)
    return right(q, np.ascontiguousarray(k[:, :, read]), np.ascontiguousarray(v[:, :, read]), *rest, **named)


def _group_for_both(a, right, q, k, v, *rest, **named):
    """Block b computes the head (b mod group) group + b / group; some heads are beyond, and some are no block's."""
    y, group, block = np.array(right(q, k, v, *rest, **named)), q.shape[2] // k.shape[2], np.arange(q.shape[2])
    y[:, :, np.setdiff1d(block, block % group * group + block // group)] = 0
    return y


def _weights_in_float8(a, right, q, k, v, scale=None, mask=None, diagonal=None, sinks=None):
    """Weights up to 1 are E4M3, which has nothing below 2^-9; their sum is of those before."""
    if mask is not None or diagonal is not None or sinks is not None:
        return right(q, k, v, scale, mask, diagonal, sinks)
    q, k, v = (np.asarray(t, np.float64) for t in (q, k, v))
    scores = np.einsum("nlhd,njhd->nhlj", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    few = p.astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
    return np.einsum("nhlj,njhd->nlhd", few / p.sum(axis=-1, keepdims=True), v)


_TABLE = {
    "ty-op-01": ("op", "ROCm/hip-ep#588, four bits in rows whose last block is not whole", None),
    "ty-op-02": (
        "op",
        "1bit-MONSTER/1bit-MONSTER#2134",
        wrong_method(
            "l2_norm",
            "l2_norm",
            "mean|rms|RMS|sqrt|root|number of|count|length of the row",
            l2_norm=_root_of_the_mean,
        ),
    ),
    "ty-op-03": (
        "op",
        "guoqingbao/xinfer#467, a comment",
        wrong_method(
            "linear",
            "linear",
            r"16 (of|numbers|inputs)|first 16|\bof (each |every )?256|(not|only).*(read|summed)|left out|rest|tail",
            "linear/iq4_nl/*",
            linear=_one_sixteenth,
        ),
    ),
    "ty-op-04": ("op", "tracel-ai/burn#5450, a pool's padding that differs between sides", None),
    "ty-op-05": ("op", "microsoft/onnxruntime#27375, a pool's padding that differs between sides", None),
    "ty-op-06": ("op", "microsoft/onnxruntime#16203, ceil_mode", None),
    "ty-op-07": ("op", "kulinseth/pytorch#273, divisor_override", None),
    "ty-op-08": (
        "op",
        "ROCm/FlyDSL#1020, flashinfer-ai/flashinfer#5020",
        wrong_method(
            "attention",
            "attention",
            "e4m3|E4M3|float8|fp8|few bits|weights?.*(round|small|lost|0|bits)|underflow|sum",
            "attention/f32/many-keys-*",
            "attention/f16/sums-*",
            attention=_weights_in_float8,
        ),
    ),
    "ty-op-09": (
        "op",
        "PSAL-POSTECH/ONNXim#34",
        wrong_method(
            "attention",
            "attention",
            "head",
            "attention/f32/self-*",
            "attention/f32/cross-*",
            "attention/f32/masked-*",
            "attention/f32/cube-*",
            attention=_by_the_number_of_heads,
        ),
    ),
    "ty-op-10": (
        "op",
        "HazyResearch/HipKittens#22",
        wrong_method(
            "attention",
            "attention",
            "heads?.*(0|zero|written|empty|computed)|(0|zeros?|nothing|not written).*(heads?|2 and 5 of 6)",
            "attention/f32/grouped-*",
            attention=_group_for_both,
        ),
    ),
    "ty-op-11": ("op", "FlashML-org/FreeToken#177, more than 16 heads to a head of keys", None),
    "ty-op-12": ("op", "ModelCloud/GPTQModel#2351, vllm-project/vllm#55262: four bits with zero points", None),
    "ty-op-13": ("op", "pie-project/pie#491, four bits with zero points", None),
    "ty-op-14": (
        "op",
        "gabrieldemarmiesse/torch-mojo-backend#319",
        other_result("softmax", "NaN|nan|-inf (from|less|and|[+-]) ", _threads_without_numbers),
    ),
    "ty-op-15": (
        "op",
        "causalflow-ai/petit-kernel#3",
        Injection(
            ("linear_nvfp4/*",),
            Bug(answer=_by_other_eight_bits),
            "linear_nvfp4",
            "-0|minus 0|half|exponent.*16",
        ),
    ),
    "ty-op-16": (
        "op",
        "1bit-MONSTER/1bit-MONSTER#1205, #1207",
        wrong_method(
            "linear_int8",
            "linear_int8",
            "tile|block|order|layout|8 (by|x) 8|permut|stride|swizzl|interleav",
            "linear_int8/tokens-scalar-*",
            "linear_int8/square-weight-*",
            linear_quantized=_micro_tiles,
        ),
    ),
    "ty-op-17": (
        "op",
        "warpfront/hipfire#28 and #33",
        Injection(("linear/q4_1/*",), Bug(answer=_blocks_in_half), "linear", "float16|f16|half|rounded|few bits"),
    ),
    "ty-op-18": (
        "op",
        "openvinotoolkit/openvino#36135, the mend before it",
        Injection(
            ("linear_int8/tokens-x*", "linear_int8/outliers-*", "linear_int8/positive-*"),
            Bug(answer=_scaled_in_half),
            "linear_int8",
            "float16|f16|half|overflow|65504|inf",
        ),
    ),
    "ty-op-19": (
        "op",
        "pytorch/pytorch#60460",
        wrong_method(
            "conv2d",
            "conv2d",
            "group|depthwise|channel|filter|(not|nothing is) written|zero|output",
            "conv2d/f32/multiplied-*",
            conv2d=_as_many_outputs_as_groups,
        ),
    ),
    "ty-op-20": (
        "op",
        "gmongaras/Diffusion_models_from_scratch#10",
        wrong_method(
            "timestep_embedding",
            "timestep_embedding",
            r"(even|odd|row|item|step).*(sin|cos)|(sin|cos).*(even|odd|row|item)",
            timestep_embedding=_by_the_row,
        ),
    ),
    "ty-op-21": (
        "op",
        "ggml-org/llama.cpp#28637",
        wrong_method(
            "linear",
            "linear",
            r"32|tile|from (row|token) |rows? \d+.*on|behind|memory|not written|tail|first",
            "linear/f32/tokens-*",
            linear=_second_warp,
        ),
    ),
    "ty-op-22": ("op", "fla-org/flash-linear-attention#1029, heads that the keys' do not divide", None),
    "ty-op-23": ("op", "xdit-project/xDiT#767, 2^30 numbers", None),
}
TWENTIETH_OPERATIONS: dict[str, HeldOut] = {id: HeldOut(*row) for id, row in _TABLE.items()}
