"""A seventeenth fresh set, of operations: from public trackers, drawn before a look at the judge."""

import numpy as np
from held_out import HeldOut
from injection import Bug, Injection, wrong_method

from refsd.kernels.attention_int8 import codes_of_blocks, exact_products, smoothed

# --- attention ---------------------------------------------------------------------------------------------------


def _read_on(t, width):
    """A head's channels go on into what lies behind them in memory."""
    t = np.ascontiguousarray(t)
    D = t.shape[-1]
    memory = np.concatenate([t.ravel(), np.zeros(width, t.dtype)])
    first = np.arange(t.size // D).reshape(t.shape[:-1]) * D
    return memory[first[..., None] + np.arange(width)]


def _to_a_power_of_two(a, right, q, k, v, scale=None, *rest, **named):
    """Heads are loaded as wide as the next power of two, and nothing hides what is not the head's."""
    D = q.shape[-1]
    width = 1 << (D - 1).bit_length()
    return right(_read_on(q, width), _read_on(k, width), v, D**-0.5 if scale is None else scale, *rest, **named)


def _causal_by_fours(a, right, q, k, v, scale=None, mask=None, diagonal=None, sinks=None):
    """Four queries share the causal mask of the last of them."""
    if diagonal is None:
        return right(q, k, v, scale, mask, None, sinks)
    L, J = q.shape[1], k.shape[1]
    last = np.minimum(np.arange(L) // 4 * 4 + 3, L - 1)
    hidden = np.where(np.arange(J) > (last + J - L)[:, None], -np.inf, 0)[None, None]
    return right(q, k, v, scale, hidden if mask is None else mask + hidden, None, sinks)


def _scale_of_an_earlier_call(a, right, q, k, v, scale=None, *rest, **named):
    """The compiled graph is found by its shapes alone: a call without a scale has made it."""
    return right(q, k, v, None, *rest, **named)


def _zeros_fill_the_ranks(a, right, q, k, v, *rest, **named):
    """Two ranks have as many tokens each: an odd row gets a token of zeros, which is a key like others."""
    if q.shape[1] != k.shape[1] or k.shape[1] % 2 == 0:
        return right(q, k, v, *rest, **named)
    k, v = (np.concatenate([t, np.zeros_like(t[:, :1])], axis=1) for t in (k, v))
    return right(q, k, v, *rest, **named)


def _sinks_not_shifted(a, right, q, k, v, scale=None, mask=None, diagonal=None, sinks=None):
    """Exponentials of scores are times 2^8, that of the sink is not."""
    return right(q, k, v, scale, mask, diagonal, None if sinks is None else sinks - 8 * np.log(2))


def _first_head_of_the_group(case, inputs, y):
    """Query heads that share keys are one head to the kernel, and share the first one's scale of codes."""
    q, k, v = (inputs[name].values().astype(np.float64) for name in "qkv")
    (B, L, H, _), G = q.shape, k.shape[2]
    q_codes, q_scale = codes_of_blocks(q * case.params["scale"], 128)
    k_codes, k_scale = codes_of_blocks(smoothed(k), 64)
    answer = np.empty((B, L, H, v.shape[3]))
    for b, h in np.ndindex(B, H):
        g, first = h // (H // G), h // (H // G) * (H // G)
        scores = exact_products(q_codes[b, :, h], k_codes[b, :, g]) * q_scale[b, :, first] * k_scale[b, :, g].T
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        answer[b, :, h] = weights / weights.sum(axis=1, keepdims=True) @ v[b, :, g]
    return {"y": answer.astype(y["y"].dtype)}


# --- few bits ----------------------------------------------------------------------------------------------------


def _half_a_tile_more(a, right, x, weight, scale, bias, how, static=None, zero=None):
    """Tiles of 32 along K are not bounded: behind a row of 16 too few lies the next row, of x and of the weight."""
    if x.shape[-1] % 32 != 16 or how.block != 16:
        return right(x, weight, scale, bias, how, static, zero)
    rows = np.asarray(x).reshape(-1, x.shape[-1])
    behind = [np.concatenate([t[1:, :16], np.zeros_like(t[:1, :16])]) for t in (rows, weight)]
    wide = [np.concatenate([t, more], axis=1) for t, more in zip((rows, weight), behind, strict=True)]
    return right(*wide, scale, bias, how, static, zero).reshape(*x.shape[:-1], -1)


def _scales_of_rows_along_columns(a, right, x, weight, scale, bias, how, static=None, zero=None):
    """The weight is transposed, its scales are not."""
    return right(x, weight * np.ravel(scale), np.ones_like(scale), bias, how, static, zero)


# --- functions ---------------------------------------------------------------------------------------------------


def _clipped_cubic(a, right, x):
    """tanh(y) is y + 0.1834 y^3, cut off at 1."""
    y = np.asarray(x, np.float64) / 2
    return x * (0.5 + 0.5 * np.clip(y * (1 + 0.1834 * y * y), -1, 1))


def _always_by_tanh(a, right, x, approximate="none"):
    return right(x, "tanh")


def _mean_of_squares(a, right, x, weight=None, bias=None, eps=1e-5):
    """The variance is the mean of squares less the square of the mean, in float32."""
    x = np.asarray(x, np.float32)
    mean = x.mean(axis=-1, keepdims=True)
    variance = np.square(x).mean(axis=-1, keepdims=True) - np.square(mean)
    y = (x - mean) / np.sqrt(variance + np.float32(eps))
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _odd_end_not_written(a, right, t, dim, *rest, **named):
    """Rows of an odd width are one longer; that place is set to 0, and the one before is left as memory was."""
    y = np.array(right(t, dim, *rest, **named))
    if dim % 2:
        y[:, -1] = np.random.default_rng(8).standard_normal(len(y))
    return y


_TABLE = {
    "sn-op-01": (
        "op",
        "turboderp-org/exllamav3#316",
        wrong_method(
            "attention",
            "attention",
            "power of (two|2)|next head|read on|beyond|behind|too many channels|wide|padd|memory|neighbour",
            "attention/f32/self-*",
            "attention/f32/cross-*",
            "attention/f32/scaled-*",
            attention=_to_a_power_of_two,
        ),
    ),
    "sn-op-02": (
        "op",
        "pytorch/pytorch#195910",
        wrong_method(
            "attention",
            "attention",
            "causal.*(tile|block|group|4|four)|(tile|block|group)s? of (4|four)|later keys|4 queries|four queries",
            "attention/f32/causal-*",
            attention=_causal_by_fours,
        ),
    ),
    "sn-op-03": (
        "op",
        "pytorch/pytorch#184122",
        wrong_method(
            "attention",
            "attention",
            r"scale.*(default|left out|ignored|not|1 ?/|root|sqrt)|1 ?/ ?sqrt|D\^-",
            "attention/f32/scaled-*",
            attention=_scale_of_an_earlier_call,
        ),
    ),
    "sn-op-04": (
        "op",
        "deepspeedai/DeepSpeed#7868, what its review finds",
        wrong_method(
            "attention",
            "attention",
            "zero.*key|key.*zero|more keys?|another key|padd|one key (more|too many)|keys? too many|extra key|sink",
            "attention/f32/self-*",
            attention=_zeros_fill_the_ranks,
        ),
    ),
    "sn-op-05": (
        "op",
        "ROCm/rocm-libraries#11189, its first",
        wrong_method(
            "attention",
            "attention",
            r"sink.*(256|2\^8|scale|factor|weigh|less|shift|times|too)|256",
            "attention/f32/sinks-*",
            attention=_sinks_not_shifted,
        ),
    ),
    "sn-op-06": (
        "op",
        "ROCm/rocm-libraries#11189, its second",
        Injection(
            ("attention_int8/grouped-*",),
            Bug(answer=_first_head_of_the_group),
            "attention_int8",
            "first head|head 0|(scale|codes?).*(head|group)|(head|group).*scale|other head",
        ),
    ),
    "sn-op-07": (
        "op",
        "ml-explore/mlx#3912",
        wrong_method(
            "linear_nvfp4",
            "linear_nvfp4",
            "next row|read on|multiple of 32|whole (tiles|blocks)|tail|beyond|behind|too many|16 (more|numbers)"
            "|tile",
            "linear_nvfp4/odd-*",
            linear_quantized=_half_a_tile_more,
        ),
    ),
    "sn-op-08": (
        "op",
        "ggml-org/llama.cpp#25608",
        Injection(
            ("dequantize/nvfp4/*",),
            Bug(answer=lambda case, inputs, y: {"y": 2 * y["y"]}),
            "dequantize",
            r"scale.*(E4M3|sign|half|halved|twice|double|2)|E4M3|\b2 times|twice|double|not halved",
        ),
    ),
    "sn-op-09": (
        "op",
        "1bit-MONSTER/1bit-MONSTER#1350",
        wrong_method(
            "silu",
            "silu",
            "cubic|polynomial|clip|hard|cut off|saturat|sigmoid.*(approx|of another)|approx|limited|tanh",
            silu=_clipped_cubic,
        ),
    ),
    "sn-op-10": (
        "op",
        "sgl-project/sglang#37609",
        wrong_method("gelu", "gelu", "tanh", "gelu/*", gelu=_always_by_tanh),
    ),
    "sn-op-11": (
        "op",
        "ggml-org/llama.cpp#15932",
        wrong_method(
            "timestep_embedding",
            "timestep_embedding",
            "(not|nothing is) written|unwritten|memory|last (channel|column|number)|odd|left as|channel 32|padding",
            "timestep_embedding/*odd*",
            "timestep_embedding/*ddpm*",
            timestep_embedding=_odd_end_not_written,
        ),
    ),
    "sn-op-12": (
        "op",
        "apache/tvm#19592",
        wrong_method(
            "layer_norm",
            "layer_norm",
            "one pass|mean of squares|squares? (less|minus)|E\\[x|cancel|variance",
            "layer_norm/*",
            layer_norm=_mean_of_squares,
        ),
    ),
    "sn-op-13": (
        "op",
        "Comfy-Org/comfy-kitchen#37, without a case when it was drawn",
        wrong_method(
            "linear_int8",
            "linear_int8",
            "scale.*(column|input|axis|K\\b)|column.*scale",
            "linear_int8/square-*",
            linear_quantized=_scales_of_rows_along_columns,
        ),
    ),
    "sn-op-14": ("op", "ggml-org/ggml#1532, columns of one axis with more than 1024 taps", None),
    "sn-op-15": ("op", "openvinotoolkit/openvino#32414, a sum beyond float16", None),
    "sn-op-16": ("op", "ml-explore/mlx#3138, 2^32 numbers in the columns of a convolution", None),
    "sn-op-17": ("op", "ml-explore/mlx#3836, strides of 2^31", None),
    "sn-op-18": ("op", "ml-explore/mlx#3327, 2^31 numbers", None),
    "sn-op-19": ("op", "ml-explore/mlx#4437, sums of 2^29 columns", None),
    "sn-op-20": ("op", "ml-explore/mlx#3856, more than 32768 rows", None),
    "sn-op-21": ("op", "microsoft/onnxruntime#28424, a norm that adds a bias before it", None),
    "sn-op-22": ("op", "ggml-org/llama.cpp#27413, queries whose scale float16 does not hold", None),
    "sn-op-23": ("op", "flagos-ai/Torch-FL#172, a softmax of what is not packed", None),
}
SEVENTEENTH_OPERATIONS: dict[str, HeldOut] = {id: HeldOut(*row) for id, row in _TABLE.items()}
