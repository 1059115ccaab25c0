"""A twenty-first fresh set, of operations: from public trackers, drawn before a look at the judge."""

import ml_dtypes
import numpy as np
from held_out import HeldOut
from injection import Injection, other_result, wrong_method, wrong_operation

# --- norms, functions and softmax --------------------------------------------------------------------------------

_TILE = 32


def _masks_of_whole_tiles(a, right, x, weight, bias, num_groups=32, eps=1e-5):
    """A group's mask is 0 in its second tile of 32 channels: in the sums, and in what is written."""
    (N, C), each = x.shape[:2], x.shape[1] // num_groups
    t = np.asarray(x, np.float64).reshape(N, num_groups, each, -1)
    group, channel = np.divmod(np.arange(C), each)
    seen = (channel + group * each) // _TILE == group * each // _TILE
    there = seen.reshape(1, num_groups, each, 1)
    count = each * t.shape[3]
    mean = (t * there).sum(axis=(2, 3), keepdims=True) / count
    variance = (np.square(t - mean) * there).sum(axis=(2, 3), keepdims=True) / count
    y = ((t - mean) / np.sqrt(variance + eps) * there).reshape(N, C, -1)
    y = y * np.asarray(weight, np.float64)[:, None] + np.asarray(bias, np.float64)[:, None]
    return y.reshape(x.shape)


def _summed(D):
    """Which of a row's numbers the last sum sees: of its groups of 32 threads as many as the last has threads."""
    n, threads = (D // 4 if D % 4 == 0 else D), 32
    while threads < n and threads < 1024:
        threads *= 2
    threads = min(threads, n)
    groups = -(-threads // 32)
    kept = min(groups, threads - 32 * (groups - 1))
    return np.arange(D) // (D // n) % threads // 32 < kept


def _mean_square_of_few_groups(a, right, x, weight, eps=1e-6):
    t = np.asarray(x, np.float64)
    square = (np.square(t) * _summed(t.shape[-1])).mean(axis=-1, keepdims=True)
    return t / np.sqrt(square + eps) * (1 if weight is None else np.asarray(weight, np.float64))


def _variance_of_few_groups(a, right, x, weight=None, bias=None, eps=1e-5):
    t = np.asarray(x, np.float64)
    seen = _summed(t.shape[-1])
    t = t - (t * seen).mean(axis=-1, keepdims=True)
    y = t / np.sqrt((np.square(t) * seen).mean(axis=-1, keepdims=True) + eps)
    return y * (1 if weight is None else weight) + (0 if bias is None else bias)


def _lanes_read_as_0(a, right, x, scale=1.0, mask=None, sinks=None):
    """A row is filled to a power of two with zeros, which have a part in its maximum and in its sum."""
    if sinks is not None:
        return right(x, scale, mask, sinks)
    t = np.asarray(x, np.float64) * scale + (0 if mask is None else np.asarray(mask, np.float64))
    more = (1 << (t.shape[-1] - 1).bit_length()) - t.shape[-1]
    most = t.max(axis=-1, keepdims=True)
    most = np.maximum(most, 0) if more else most
    p = np.exp(t - most)
    return p / (p.sum(axis=-1, keepdims=True) + more * np.exp(-most))


def _tanh_of_exponentials(a, right, x, approximate="none"):
    """tanh(u) is (exp(2 u) - 1) / (exp(2 u) + 1), in float32: infinite over infinite from 2 u = 88.7 on."""
    t = np.asarray(x, np.float64)
    u = np.sqrt(2 / np.pi) * (t + 0.044715 * t**3)
    return np.where(2 * u > 88.7, np.nan, right(x, approximate))


# --- attention ---------------------------------------------------------------------------------------------------


def _rows_without_keys(a, right, q, k, v, scale=None, mask=None, *rest, **named):
    """A row's maximum is a large negative number, and so are its scores: every weight is exp(0)."""
    y = np.array(right(q, k, v, scale, mask, *rest, **named))
    if mask is None:
        return y
    shape = q.shape[0], q.shape[2], q.shape[1], k.shape[1]
    hidden = np.isneginf(np.broadcast_to(np.asarray(mask), shape)).all(axis=-1).transpose(0, 2, 1)
    values = np.repeat(np.asarray(v, np.float64), q.shape[2] // v.shape[2], axis=2)
    return np.where(hidden[..., None], values.mean(axis=1, keepdims=True), y)


def _heads_as_tokens(a, right, q, k, v, scale=None, mask=None, diagonal=None, sinks=None):
    """[B, L, H, D] is handed on to what takes [B, H, L, D]: each token's heads attend to each other."""
    q, k, v = (np.ascontiguousarray(np.swapaxes(t, 1, 2)) for t in (q, k, v))
    return np.swapaxes(np.asarray(right(q, k, v, scale, mask, diagonal, sinks)), 1, 2)


def _blocks_of_16_heads(a, right, q, k, v, *rest, **named):
    """A block of 16 heads reads one head of keys: of 24 heads that share one, blocks two by two."""
    block = np.arange(q.shape[2]) // 16
    read = np.minimum(block // 2, k.shape[2] - 1)
    return right(q, np.ascontiguousarray(k[:, :, read]), np.ascontiguousarray(v[:, :, read]), *rest, **named)


def _stored_in_float8(a, right, q, k, v, *rest, **named):
    y = np.asarray(right(q, k, v, *rest, **named), np.float32)
    return y.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)


def _scaled_at_every_block(a, right, q, k, v, *rest, **named):
    """A scale is multiplied by log2(e) for each block of 64 keys, and stays so for the next."""
    grown = np.log2(np.e) ** (np.arange(k.shape[1]) // 64)
    return right(q, np.asarray(k) * grown[:, None, None].astype(np.float32), v, *rest, **named)


# --- convolutions and resizing -----------------------------------------------------------------------------------


def _no_bias(a, right, x, weight, bias, *rest, **named):
    return right(x, weight, np.zeros_like(bias), *rest, **named)


def _first_group_alone(a, right, x, weight, bias, stride=1, padding=(0, 0, 0, 0), dilation=1, groups=1):
    y = np.array(right(x, weight, bias, stride, padding, dilation, groups))
    y[:, y.shape[1] // groups :] = 0
    return y


def _frames_padded_as_columns(a, right, x, weight, bias, stride=1, padding=(0,) * 6, *rest):
    return right(x, weight, bias, stride, (*padding[4:], *padding[2:4], *padding[:2]), *rest)


def _lower_at_a_tie(case, inputs, y):
    """The nearest of two pixels as far is the lower one."""
    x = inputs["x"].values()

    def nearest(out, size):
        place = (np.arange(out) + 0.5) * size / out - 0.5
        return np.ceil(place - 0.5).astype(int).clip(0, size - 1)

    return x[:, :, nearest(y.shape[2], x.shape[2])][..., nearest(y.shape[3], x.shape[3])]


_TABLE = {
    "to-op-01": (
        "op",
        "tenstorrent/tt-metal#21149",
        wrong_method(
            "group_norm",
            "group_norm",
            r"\b32\b|tile|cross|edge|border|left out|not summed|some channels|channels.*(bias|mask)",
            "group_norm/f32/unet-*",
            "group_norm/f32/vae-*",
            "group_norm/f32/groups-*",
            group_norm=_masks_of_whole_tiles,
        ),
    ),
    "to-op-02": (
        "op",
        "vllm-project/vllm#55009, what its review finds",
        wrong_method(
            "softmax",
            "softmax",
            "power of (two|2)|beyond the (row|end)|filled|padd|more (columns|keys|zeros)|zeros.*sum|extra|128",
            softmax=_lanes_read_as_0,
        ),
    ),
    "to-op-03": (
        "op",
        "NVIDIA/TensorRT-LLM#17477",
        wrong_method(
            "attention",
            "attention",
            "mean|average|uniform|all.*hidden|hidden|without keys|no key|-inf|masked",
            "attention/f32/unseen-*",
            attention=_rows_without_keys,
        ),
    ),
    "to-op-04": (
        "op",
        "microsoft/onnxruntime#28291",
        other_result("resize_nearest_exact", "tie|half|lower|down|round|floor|ceil|exact|middle", _lower_at_a_tie),
    ),
    "to-op-05": (
        "op",
        "ml-explore/mlx#3585",
        wrong_method(
            "attention",
            "attention",
            "heads?.*(token|quer|axis|axes|exchang|swap|L)|axes|over heads|BHLD|layout",
            "attention/f32/self-*",
            "attention/f32/cube-*",
            attention=_heads_as_tokens,
        ),
    ),
    "to-op-06": (
        "op",
        "ggml-org/llama.cpp#26708",
        Injection(
            ("rms_norm/f32/*", "layer_norm/f32/*"),
            wrong_operation(rms_norm=_mean_square_of_few_groups, layer_norm=_variance_of_few_groups),
            "rms_norm|layer_norm",
            r"\b128\b|\b1024\b|left out|not summed|tail|rest|beyond|whole|partial|of 132|lost|some numbers",
        ),
    ),
    "to-op-07": (
        "op",
        "apache/tvm#18750 and #18773",
        wrong_method(
            "gelu_tanh",
            "gelu_tanh",
            r"erf|exact|not tanh|\bgelu\b|GELU",
            gelu=lambda a, right, x, approximate="none": right(x, "none"),
        ),
    ),
    "to-op-08": (
        "op",
        "ROCm/hip-ep#315",
        wrong_method(
            "conv2d",
            "conv2d",
            "bias",
            "conv2d/f32/3x3-*",
            "conv2d/f32/1x1-n2-*",
            "conv2d/f32/down-*",
            conv2d=_no_bias,
        ),
    ),
    "to-op-09": (
        "op",
        "vllm-project/vllm#40792, what its review finds",
        wrong_method(
            "attention",
            "attention",
            r"group|heads?.*(of keys|16|24|other|shar|block)|\b16\b|each 32",
            "attention/f32/one-query-*",
            attention=_blocks_of_16_heads,
        ),
    ),
    "to-op-12": (
        "op",
        "xiaoxiao0406/VQ-VLA#7",
        wrong_method(
            "conv3d",
            "conv3d",
            "pad",
            "conv3d/f32/causal-*",
            conv3d=_frames_padded_as_columns,
        ),
    ),
    "to-op-15": (
        "op",
        "pytorch/pytorch#186278",
        wrong_method(
            "gelu_tanh",
            "gelu_tanh",
            "overflow|inf|exp|NaN|nan|88",
            gelu=_tanh_of_exponentials,
        ),
    ),
    "to-op-16": (
        "op",
        "tenstorrent/tt-metal#55711 and #56355",
        wrong_method(
            "silu",
            "silu",
            "overflow|inf|exp|0 (below|for|where|beyond)|flush|88|87|subnormal|denormal",
            silu=lambda a, right, x: np.where(np.asarray(x) <= -87.34, 0, right(x)),
        ),
    ),
    "to-op-17": (
        "op",
        "ROCm/rocm-libraries#4998",
        wrong_method(
            "conv2d",
            "conv2d",
            "group|first.*(channel|output)|channels?.*(0|zero|not (written|computed))|zeros.*channels",
            "conv2d/f16/groups-*",
            "conv2d/f16/depthwise-n2-*",
            conv2d=_first_group_alone,
        ),
    ),
    "to-op-18": (
        "op",
        "vllm-project/vllm#55696",
        wrong_method(
            "attention",
            "attention",
            "e4m3|E4M3|float8|fp8|8.bit|few bits|3 bits|mantissa|4 bits",
            "attention/f32/self-*",
            "attention/f32/cross-*",
            "attention/f32/low-*",
            attention=_stored_in_float8,
        ),
    ),
    "to-op-19": (
        "op",
        "flagos-ai/FlagGems#424",
        wrong_method(
            "attention",
            "attention",
            r"scale|log2|1\.44|exp2|each block|\b64\b|ln|times",
            "attention/f32/wide-b1-*",
            "attention/f32/cross-*",
            "attention/f32/many-keys-*",
            "attention/f16/sums-*",
            attention=_scaled_at_every_block,
        ),
    ),
    "to-op-22": ("op", "ARM-software/CMSIS-NN#230, a transposed convolution", None),
    "to-op-23": ("op", "huggingface/candle#3279, a transposed convolution", None),
    "to-op-24": ("op", "pytorch/pytorch#183523, a resize to one pixel, between centres", None),
    "to-op-25": ("op", "ml-explore/mlx#3360, more than 32,768 keys", None),
    "to-op-26": ("op", "ml-explore/mlx#2894, a mask of 2^31 numbers", None),
    "to-op-28": ("op", "NVIDIA/cudnn-frontend#222 and #223, a batch of weights", None),
    "to-op-30": ("op", "antirez/ds4#498, a gate that is not finite", None),
    "to-op-31": ("op", "vllm-project/vllm#38479, a comment: keys in a codebook", None),
    "to-op-32": ("op", "vllm-project/vllm#42580, keys and values in float8 with a scale", None),
    "to-op-33": ("op", "ROCm/rocm-libraries#12227 and #12229, sinks where all of the first keys are hidden", None),
}
TWENTY_FIRST_OPERATIONS: dict[str, HeldOut] = {id: HeldOut(*row) for id, row in _TABLE.items()}
