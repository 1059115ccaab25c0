"""An eighth fresh set, of operations and block types: from public trackers, drawn before a look at the judge."""

import numpy as np
from held_out import HeldOut
from injection import Bug, Injection, other_result, wrong_method

from refsd.engines.reference import Reference
from refsd.kernels.softmax import softmax
from refsd.numerics.profiles import FLOAT32
from refsd.numerics.tensor import StoredTensor

# --- convolution and products ------------------------------------------------------------------------------------


def _taken_for_channels_last(a, right, x, weight, *rest, **named):
    """Strides of C = H = W are the same in both layouts: the picture is read as if channels came last."""
    N, C, H, W = x.shape
    if C == H == W:
        x = np.ascontiguousarray(np.asarray(x).reshape(N, H, W, C).transpose(0, 3, 1, 2))
    return right(x, weight, *rest, **named)


def _bias_along_the_rows(a, right, x, weight, bias=None, *rest):
    """Where the product is square, a fused bias is added by row."""
    y = right(x, weight, None, *rest)
    if bias is None:
        return y
    rows = y.reshape(-1, y.shape[-1])
    bias = np.asarray(bias, np.float64)
    return (rows + (bias[:, None] if len(rows) == len(bias) else bias)).reshape(y.shape)


def _whole_tiles_alone(a, right, x, weight, *rest):
    """As many tiles of 64 columns are started as fit; those behind are never written."""
    y = np.array(right(x, weight, *rest))
    y[..., y.shape[-1] // 64 * 64 :] = 0
    return y


# --- norms -------------------------------------------------------------------------------------------------------


def _all_groups_at_once(a, right, x, weight, bias, num_groups=32, eps=1e-5):
    """Mean and variance are taken over the axis of groups, too."""
    return right(x, weight, bias, 1, eps)


def _padding_counted(a, right, x, weight, bias, num_groups=32, eps=1e-5):
    """Pixels lie in tiles of 32, filled up with zeros, which enter mean and variance."""
    x = np.asarray(x, np.float64)
    groups = x.reshape(len(x), num_groups, -1, x.shape[2] * x.shape[3])
    full = np.pad(groups, ((0, 0), (0, 0), (0, 0), (0, -groups.shape[-1] % 32)))
    mean, var = (f(full, axis=(2, 3), keepdims=True) for f in (np.mean, np.var))
    y = ((groups - mean) / np.sqrt(var + eps)).reshape(x.shape)
    return y * np.asarray(weight)[:, None, None] + np.asarray(bias)[:, None, None]


def _squares_in_float16(a, right, x, weight, eps=1e-6):
    """Squares are added up in float16, which ends at 65504."""
    x = np.asarray(x, np.float64)
    squares = np.square(x.astype(np.float16)).sum(-1, keepdims=True, dtype=np.float16).astype(np.float64)
    return x / np.sqrt(squares / x.shape[-1] + eps) * (1 if weight is None else weight)


# --- activations and attention -----------------------------------------------------------------------------------

_TANH = (4.89352455891786e-03, 6.37261928875436e-04, 1.48572235717979e-05, 5.12229709037114e-08)
_BELOW = (4.89352518554385e-03, 2.26843463243900e-03, 1.18534705686654e-04, 1.19825839466702e-06)


def _without_small_coefficients(x):
    """A quotient of polynomials for tanh in float16: the coefficients of x^9 and above have become 0."""
    u = np.clip(x, -9, 9)
    return u * np.polyval(_TANH[::-1], u * u) / np.polyval(_BELOW[::-1], u * u)


def _fast_gelu(a, right, x, approximate="none"):
    if approximate != "tanh":
        return right(x, approximate)
    x = np.asarray(x, np.float64)
    inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    return 0.5 * x * (1 + _without_small_coefficients(inner))


def _limited_padding(case, inputs, y):
    """Keys lie in tiles of 64; scores of the places behind them are -inf, then -cap, and their values 0."""
    if "mask" in inputs:
        return y
    q, k, v = (inputs[name].values().astype(np.float64) for name in "qkv")
    cap, more = case.params["cap"], -k.shape[1] % 64
    scale = case.params.get("scale", q.shape[-1] ** -0.5)
    k, v = (np.repeat(t, q.shape[2] // t.shape[2], axis=2) for t in (k, v))
    scores = cap * np.tanh(np.einsum("blhd,bjhd->bhlj", q, k) * scale / cap)
    scores = np.pad(scores, ((0, 0), (0, 0), (0, 0), (0, more)), constant_values=-cap)
    shares = softmax(scores.reshape(-1, scores.shape[-1])).reshape(scores.shape)[..., : k.shape[1]]
    return np.einsum("bhlj,bjhe->blhe", shares, v).astype(y.dtype)


# --- quantised types ---------------------------------------------------------------------------------------------


def _halves_in_turn_and_unscaled_sum(case, inputs, y):
    """Low and high half of a byte are neighbours, and 8 times the sum of rounded inputs lacks their scale."""
    x, weight = inputs["x"].values().astype(np.float64), inputs["weight"]
    blocks = weight.data.reshape(weight.shape[0], -1, 18)
    d = blocks[..., :2].copy().view(np.float16).astype(np.float64)
    q = np.stack([blocks[..., 2:] & 15, blocks[..., 2:] >> 4], axis=-1).reshape(*blocks.shape[:2], 32)
    rows = x.reshape(-1, blocks.shape[1], 32)
    step = np.abs(rows).max(-1, keepdims=True) / 127
    codes = np.rint(rows / np.where(step, step, 1))
    product = np.einsum("rbi,obi->rob", codes * step, q.astype(np.float64)) - 8 * codes.sum(-1)[:, None]
    wrong = (product * d[..., 0]).sum(-1).reshape(y.shape)
    return (wrong + (inputs["bias"].values() if "bias" in inputs else 0)).astype(y.dtype)


def _small_scales_lost(case, inputs, y):
    """The scales of blocks are packed with a first bit that is always 1 above 2^-6: smaller ones become 0."""
    bits = inputs["block_scale"].data.view(np.uint8)
    kept = np.where(bits & 0x7F < 8, 0, bits).astype(np.uint8).view(inputs["block_scale"].data.dtype)
    own = StoredTensor(inputs["block_scale"].type, inputs["block_scale"].shape, kept)
    return Reference(FLOAT32).run(case, {**inputs, "block_scale": own})["y"].astype(y.dtype)


_TABLE = {
    "b-conv-01": (
        "op",
        "huggingface/candle#3405",
        wrong_method(
            "conv2d", "conv2d", "channels? last|NHWC|order|last in memory", conv2d=_taken_for_channels_last
        ),
    ),
    "b-lin-01": (
        "op",
        "openxla/xla#46897",
        wrong_method("linear", "linear", "bias.*(row|axis|token)", "linear/f32/*", linear=_bias_along_the_rows),
    ),
    "b-lin-02": (
        "op",
        "ml-explore/mlx#4250",
        wrong_method(
            "linear",
            "linear",
            "(tile|column|channel|output).*(not written|zero|0|64)|not written|64",
            "linear/q4_0/*",
            "linear/q8_0/*",
            linear=_whole_tiles_alone,
        ),
    ),
    "b-norm-01": (
        "op",
        "brainpy/BrainPy#765",
        wrong_method("group_norm", "group_norm", "group", group_norm=_all_groups_at_once),
    ),
    "b-norm-02": (
        "op",
        "tenstorrent/tt-metal#50682",
        wrong_method("group_norm", "group_norm", "zeros|padding|too many|multiple of", group_norm=_padding_counted),
    ),
    "b-norm-03": (
        "op",
        "microsoft/onnxruntime#29034",
        wrong_method("rms_norm", "rms_norm", "f(loat)?16|overflow|65504", rms_norm=_squares_in_float16),
    ),
    "b-act-01": (
        "op",
        "Tencent/ncnn#6979",
        wrong_method("gelu_tanh", "gelu", r"tanh|1\.04|saturat", gelu=_fast_gelu),
    ),
    "b-att-01": (
        "op",
        "ggml-org/llama.cpp#29034",
        other_result("attention_softcap", "padd|behind|more keys|empty|sink|tile|multiple of", _limited_padding),
    ),
    "b-q-01": (
        "op",
        "kekzl/imp#722",
        Injection(
            ("linear/q4_0/*",),
            Bug(answer=lambda case, inputs, y: {"y": _halves_in_turn_and_unscaled_sum(case, inputs, y["y"])}),
            "linear",
            "interleav|in turn|nibble|half|order",
        ),
    ),
    "b-q-02": (
        "op",
        "vllm-project/vllm#34577",
        other_result("linear_nvfp4", "subnormal|small|2\\^-6|underflow", _small_scales_lost),
    ),
}
EIGHTH_OPERATIONS = {id: HeldOut(*row) for id, row in _TABLE.items()}
