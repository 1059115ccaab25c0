"""A seventh fresh set, of operations and block types: from public trackers, drawn before a look at the judge."""

import numpy as np
from held_out import HeldOut
from injection import Injection, other_result, wrong_method

from refsd.kernels.interpolate import resize_bicubic_corners, resize_bilinear_corners

# --- attention ---------------------------------------------------------------------------------------------------


def _bias_not_broadcast(a, right, q, k, v, scale=None, mask=None, *rest, **named):
    """The bias of item n and head h is read at (n H + h) L J, though it has one head: 0 behind its end."""
    if mask is None:
        return right(q, k, v, scale, None, *rest, **named)
    N, L, H, _ = q.shape
    J = k.shape[1]
    stored = np.asarray(mask, np.float64)
    stored = np.broadcast_to(stored, (*stored.shape[:2], L, J)).reshape(-1)
    read = np.append(stored, np.zeros(N * H * L * J))[: N * H * L * J].reshape(N, H, L, J)
    return right(q, k, v, scale, read, *rest, **named)


def _at_the_last_corner(a, right, q, k, v, scale=None, mask=None, diagonal=None, *rest):
    """A causal mask of fewer queries than keys begins at the last corner."""
    return right(q, k, v, scale, mask, diagonal if diagonal is None else k.shape[1] - q.shape[1], *rest)


# --- convolution -------------------------------------------------------------------------------------------------


def _one_stage_more(a, right, x, weight, bias, stride=1, padding=(0, 0, 0, 0), dilation=1, groups=1):
    """A 1x1 filter's product sums an even number of stages of 8 channels: the last may lie behind the row."""
    y = right(x, weight, bias, stride, padding, dilation, groups)
    C = x.shape[1]
    if weight.shape[2:] != (1, 1) or groups != 1 or C % 8 or C // 8 % 2 == 0:
        return y
    pixels, filters = (
        np.moveaxis(np.asarray(x, np.float64), 1, -1).reshape(-1, C),
        np.asarray(weight).reshape(-1, C),
    )
    behind = [np.append(t.ravel()[C:], np.zeros(C)).reshape(t.shape)[:, :8] for t in (pixels, filters)]
    more = (behind[0] @ behind[1].T).reshape(len(x), *x.shape[2:], -1)
    return y + np.moveaxis(more, -1, 1)


def _neighbours_of_one_channel(a, right, x, weight, bias, stride=1, padding=(0, 0, 0, 0), dilation=1, groups=1):
    """A depthwise 3x3 filter with gaps reads the nearest pixels, from the window's first on."""
    y = right(x, weight, bias, stride, padding, dilation, groups)
    if groups == 1 or weight.shape[2:] != (3, 3) or dilation == 1:
        return y
    return right(x, weight, bias, stride, padding, 1, groups)[..., : y.shape[2], : y.shape[3]]


# --- resizing, norms, embeddings ---------------------------------------------------------------------------------


def _corners_always(case, inputs, y):
    p = case.params
    if p.get("align_corners") or p.get("antialias"):
        return y
    resize = resize_bicubic_corners if case.op == "resize_bicubic" else resize_bilinear_corners
    return resize(inputs["x"].values().astype(np.float64), p["height"], p["width"])


def _sums_without_the_margin(a, right, x, weight, bias, num_groups=32, eps=1e-5):
    """The input lies with a margin of one pixel; the first pass, of the sums, counts places as if it had none."""
    x = np.asarray(x, np.float64)
    N = len(x)
    memory = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))).reshape(-1)
    read = memory[: x.size].reshape(N, num_groups, -1)
    mean, var = read.mean(-1)[..., None], read.var(-1)[..., None]
    y = ((x.reshape(N, num_groups, -1) - mean) / np.sqrt(var + eps)).reshape(x.shape)
    return y * np.asarray(weight)[:, None, None] + np.asarray(bias)[:, None, None]


def _by_the_reciprocal(a, right, x, weight, eps=1e-6):
    """x / rsqrt(mean square + eps)."""
    x = np.asarray(x, np.float64)
    return x * np.sqrt((x**2).mean(-1, keepdims=True) + eps) * (1 if weight is None else weight)


def _squares_less_the_square(a, right, x, weight=None, bias=None, eps=1e-5):
    """Variance is E[x^2] - E[x]^2, in float32."""
    x = np.asarray(x, np.float32)
    D = np.float32(x.shape[-1])
    mean = x.sum(-1, keepdims=True, dtype=np.float32) / D
    var = (x * x).sum(-1, keepdims=True, dtype=np.float32) / D - mean * mean
    y = (x - mean) / np.sqrt(np.maximum(var, 0) + np.float32(eps))
    return y * (1 if weight is None else weight) + (0 if bias is None else bias)


def _last_frequency_reached(a, right, t, dim, max_period=10000.0, freq_shift=0.0, *rest, **named):
    return right(t, dim, max_period, 1.0, *rest, **named)


def _depth_first(case, inputs, y):
    """SpaceToDepth: of each place in the block, all channels."""
    N, C, H, W = y.shape
    return y.reshape(N, C // 4, 4, H, W).swapaxes(1, 2).reshape(y.shape)


# --- quantised types ---------------------------------------------------------------------------------------------


def _halves_in_turn(case, inputs, y):
    """Of 16 bytes, low and high half in turn, not 16 low ones before 16 high ones."""
    return y.reshape(-1, 2, 16).swapaxes(1, 2).reshape(y.shape)


def _signed_halves(case, inputs, y):
    """Unsigned half bytes read as signed: q - 16 from 8 on. A block: d, m, then 16 bytes."""
    blocks = inputs["x"].data.reshape(-1, 20)
    d = blocks[:, :2].copy().view(np.float16).astype(np.float64)
    q = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1)
    return (y.reshape(-1, 32) - 16 * d * (q >= 8)).reshape(y.shape)


def _scale_as_divisor(case, inputs, y):
    """The file's scale of the whole weight is a divisor to the engine."""
    scale = float(inputs["weight_scale"].values()[0])
    bias = inputs["bias"].values() if "bias" in inputs else 0
    return (y.astype(np.float64) - bias) / scale**2 + bias


def _a_scale_a_channel(case, inputs, y):
    """Inputs are rounded by a scale for each place of all but the first axis, not for each token."""
    if "x_scale" in inputs or case.params:
        return y
    x, w, scale = (inputs[name].values().astype(np.float64) for name in ("x", "weight", "weight_scale"))
    own = np.abs(x).max(0, keepdims=True) / 127
    rounded = np.rint(x / np.where(own, own, 1)) * own
    return rounded @ (w * scale[:, None]).T + (inputs["bias"].values() if "bias" in inputs else 0)


def _written(op: str, cause: str, change, *cases: str) -> Injection:
    """As other_result, in the dtype of the right answer."""
    injection = other_result(op, cause, lambda *told: np.asarray(change(*told)).astype(told[-1].dtype))
    return injection._replace(cases=cases or injection.cases)


_TABLE = {
    "a-conv-01": (
        "op",
        "tracel-ai/burn#5626",
        wrong_method("conv2d", "conv2d", "go on|too many|read on|behind", conv2d=_one_stage_more),
    ),
    "a-conv-02": (
        "op",
        "tensorflow/tfjs#6264",
        wrong_method("conv2d", "conv2d", "dilation", conv2d=_neighbours_of_one_channel),
    ),
    "a-attn-01": (
        "op",
        "microsoft/onnxruntime#26769",
        wrong_method(
            "attention",
            "attention",
            "broadcast|head 0|mask ignored, in items from 1 on of axis 2",
            attention=_bias_not_broadcast,
        ),
    ),
    "a-attn-02": (
        "op",
        "ml-explore/mlx#2835",
        wrong_method("attention", "attention", "corner|diagonal|last quer", attention=_at_the_last_corner),
    ),
    "a-res-01": (
        "op",
        "antimora/burn-flex#7",
        _written("resize", "corner", _corners_always, "resize_bilinear/*", "resize_bicubic/*"),
    ),
    "a-norm-01": (
        "op",
        "openvinotoolkit/openvino#32258",
        wrong_method(
            "group_norm", "group_norm", "margin|border|padd|stride|pitch", group_norm=_sums_without_the_margin
        ),
    ),
    "a-norm-02": (
        "op",
        "mosaicml/llm-foundry#372",
        wrong_method(
            "rms_norm",
            "rms_norm",
            r"multipl|reciprocal|power -0\.5",
            rms_norm=_by_the_reciprocal,
        ),
    ),
    "a-norm-03": (
        "op",
        "tracel-ai/burn#5607",
        wrong_method(
            "layer_norm", "layer_norm", r"E\[x|one pass|mean of squares|cancel", layer_norm=_squares_less_the_square
        ),
    ),
    "a-time-01": (
        "op",
        "kohya-ss/sd-scripts#1187",
        wrong_method(
            "timestep_embedding",
            "timestep_embedding",
            "freq_shift|half - 1|- 1",
            timestep_embedding=_last_frequency_reached,
        ),
    ),
    "a-pix-01": (
        "op",
        "microsoft/onnxscript#2891",
        _written("pixel_unshuffle", "order|channel|transpos|exchang|axes", _depth_first),
    ),
    "a-q-01": (
        "file",
        "modular/modular#6600, of the weight",
        _written("linear_nvfp4", "scale.*(inverted|reciprocal)|divid", _scale_as_divisor),
    ),
    "a-q-02": (
        "file",
        "lvyufeng/PocketLLM#49",
        _written("dequantize", "interleav|in turn|order|nibble|half", _halves_in_turn, "dequantize/iq4_xs/*"),
    ),
    "a-q-03": (
        "file",
        "1bit-MONSTER/1bit-MONSTER#1268, in q4_1",
        _written("dequantize", "sign|8 as -8", _signed_halves, "dequantize/q4_1/*"),
    ),
    "a-q-04": (
        "file",
        "vllm-project/compressed-tensors#393",
        _written("linear_int8", "(scale|round).*(channel|column|first axis|item|K)|channel", _a_scale_a_channel),
    ),
}
SEVENTH_OPERATIONS = {id: HeldOut(*row) for id, row in _TABLE.items()}
