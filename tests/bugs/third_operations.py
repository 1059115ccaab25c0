"""A third fresh set, of operations: drawn from public trackers on 2026-11-23, after the second had been mended."""

import numpy as np
from held_out import HeldOut
from held_out_products import of_blocks
from injection import Injection, other_result, wrong_method

# --- norms, functions, pooling, convolution ----------------------------------------------------------------------


def _eps_beside_the_count(a, right, x, weight=None, bias=None, eps=1e-5):
    """variance / (D + eps): eps stands beside the number of channels, not beside the variance."""
    x = np.asarray(x, np.float64)
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred**2).sum(-1, keepdims=True) / (x.shape[-1] + eps)
    y = centred / np.sqrt(np.maximum(variance, 1e-300))
    return y * (1 if weight is None else weight) + (0 if bias is None else bias)


def _no_limit(a, right, gate, value, alpha, limit):
    return right(gate, value, alpha, 1e30)


def _zeros_around(case, inputs, y):
    """Of a maximum, too, pixels outside the picture are zeros."""
    x = np.asarray(inputs["x"].values(), np.float64)
    (R, S), (top, left) = case.params["kernel_size"], case.params["padding"]
    down, right = case.params["stride"]
    padded = np.pad(x, ((0, 0), (0, 0), (top, top), (left, left)))
    out = np.zeros(y.shape)
    for p in range(y.shape[2]):
        for q in range(y.shape[3]):
            out[:, :, p, q] = padded[:, :, p * down : p * down + R, q * right : q * right + S].max(axis=(2, 3))
    return out.astype(y.dtype)


def _first_frame_of_the_filter(a, right, x, weight, *rest, **named):
    """Of the filter's frames the first alone is multiplied."""
    weight = np.array(weight)
    weight[:, :, 1:] = 0
    return right(x, weight, *rest, **named)


def _time_as_it_is(a, right, t, dim, max_period=10000.0, freq_shift=0.0, scale=1.0, sin_first=False):
    """Times of 0 to 1 are embedded as they are, not times 1000."""
    return right(t, dim, max_period, freq_shift, 1.0, sin_first)


# --- attention ---------------------------------------------------------------------------------------------------


def _last_corner(a, right, q, k, v, scale=None, mask=None, diagonal=None, *rest):
    """The causal mask ends in the last corner: the last query sees every key."""
    diagonal = k.shape[1] - q.shape[1] if diagonal == 0 else diagonal
    return right(q, k, v, scale, mask, diagonal, *rest)


def _padded_heads(a, right, q, k, v, scale=None, *rest, **named):
    """Heads are filled up to 64 or 128 channels; the scale is that of the filled ones."""
    if scale is None:
        D = q.shape[-1]
        scale = (D if D in (64, 128) else 64 if D < 64 else 128) ** -0.5
    return right(q, k, v, scale, *rest, **named)


# --- products ----------------------------------------------------------------------------------------------------


def _first_tile_of_inputs(a, right, x, weight, bias=None, weight_type="f32"):
    """The first 16 inputs are read again for each 16 columns of a float8 matrix."""
    if weight_type in ("f8_e4m3", "f8_e5m2"):
        x = np.asarray(x)
        x = np.tile(x[..., :16], -(-x.shape[-1] // 16))[..., : x.shape[-1]]
    return right(x, weight, bias, weight_type)


def _half_of_sixteen(a, right, x, weight, *rest):
    """One row: a block of 16 outputs is begun by threads for 8."""
    y = np.array(right(x, weight, *rest))
    if y.size == y.shape[-1]:
        y[..., np.arange(y.shape[-1]) % 16 >= 8] = 0
    return y


def _one_bias(a, right, x, weight, bias=None, *rest):
    """The bias has the row's index, which is 0 of a matrix of one row: its first number for all columns."""
    return right(x, weight, None if bias is None else np.full_like(bias, bias[0]), *rest)


# --- block types -------------------------------------------------------------------------------------------------


def _quarters(blocks, right):
    """Of 128 weights the first 32 are written."""
    y = right.reshape(-1, 2, 128).copy()
    y[:, :, 32:] = 0
    return y


def _four_bytes_a_group(blocks, right):
    """Group j of 16 weights reads bytes 4 j .. 4 j + 3, four codes of each."""
    b = blocks.reshape(-1, 84)
    d, dmin = (b[:, i : i + 2].copy().view(np.float16).astype(np.float64) for i in (80, 82))
    codes = (b[:, 16:80, None] >> np.array([0, 2, 4, 6], np.uint8) & 3).reshape(-1, 16, 16)
    scale, minimum = d * (b[:, :16] & 15), dmin * (b[:, :16] >> 4)
    return scale[..., None] * codes - minimum[..., None]


def _without_subnormals(blocks, right):
    """Float8 of exponent 0 is read with the 1 before the point that it has not."""
    b = blocks.view(np.uint8).reshape(right.shape)
    wrong = (1 + (b & 7) / 8) * 2.0**-7 * np.where(b & 128, -1.0, 1.0)
    return np.where(b & 120, right, wrong)


_TABLE: dict[str, tuple[str, Injection]] = {
    "t-norm-01": (
        "xlite-dev/LeetCUDA#309",
        wrong_method("layer_norm", "layer_norm", r"\beps", layer_norm=_eps_beside_the_count),
    ),
    "t-act-01": (
        "huggingface/transformers#40197",
        wrong_method("swiglu_oai", "swiglu_oai", "limit|clamp", swiglu_oai=_no_limit),
    ),
    "t-pool-01": (
        "distdl/distdl#195",
        other_result("max_pool2d", "pad|zero|border|outside", _zeros_around),
    ),
    "t-conv-01": (
        "mlx-node/mlx-node#80",
        wrong_method(
            "conv3d", "conv3d", "first (frame|tap|slice|plane)|frame|depth", conv3d=_first_frame_of_the_filter
        ),
    ),
    "t-time-01": (
        "sihyun-yu/REPA#40",
        wrong_method("timestep_embedding", "timestep", r"scale|1000", timestep_embedding=_time_as_it_is),
    ),
    "t-att-01": (
        "pytorch/executorch#22426",
        wrong_method("attention", "attention", "corner|diagonal|causal", attention=_last_corner),
    ),
    "t-att-02": (
        "intel/ipex-llm#12619",
        wrong_method("attention", "attention", "scale|scaled|sqrt", attention=_padded_heads),
    ),
    "t-lin-01": (
        "1bit-MONSTER/1bit-MONSTER#1273",
        wrong_method("linear", "linear", r"\b16\b|tile", linear=_first_tile_of_inputs),
    ),
    "t-lin-02": (
        "1bit-MONSTER/1bit-MONSTER#678",
        wrong_method("linear", "linear", r"\b(8|16)\b", linear=_half_of_sixteen),
    ),
    "t-lin-03": (
        "kraiskil/onnx2c#12, cause taken from the excerpt",
        wrong_method("linear", "linear", "bias", linear=_one_bias),
    ),
    "t-q-01": (
        "1bit-MONSTER/1bit-MONSTER#734",
        other_result("dequantize", r"\b32\b|first|quarter", of_blocks(("q6_k",), _quarters)),
    ),
    "t-q-02": (
        "paiml/aprender#1924",
        other_result(
            "dequantize",
            "order|codes? (of|from)|byte|four|lanes?|planes?",
            of_blocks(("q2_k",), _four_bytes_a_group),
        ),
    ),
    "t-q-03": (
        "tile-ai/tilelang#2702",
        other_result("dequantize", "subnormal|exponent 0|small", of_blocks(("f8_e4m3",), _without_subnormals)),
    ),
}
THIRD_OPERATIONS = {id: HeldOut("op", source, injection) for id, (source, injection) in _TABLE.items()}
