"""Normalisations by jax.nn.standardize, in float32 whatever the dtype of x, as Flax's layers have it."""

from collections.abc import Mapping

from refsd.engines.arrays.composed import modulated
from refsd.engines.arrays.function import Function


def _layer_norm(jax, x, params):
    y = _standardized(jax, x["x"], params["eps"])
    y = y * x["weight"] if "weight" in x else y
    y = y + x["bias"] if "bias" in x else y
    return y.astype(x["x"].dtype)


def _standardized(jax, x, eps):
    return jax.nn.standardize(x.astype("float32"), axis=-1, epsilon=eps)


def _group_norm(jax, x, params):
    N, C, H, W = x["x"].shape
    y = _standardized(jax, x["x"].reshape(N, params["num_groups"], -1), params["eps"]).reshape(N, C, H, W)
    y = y * x["weight"][:, None, None] + x["bias"][:, None, None]
    return y.astype(x["x"].dtype)


def _rms_norm(jax, x, params):
    wide = x["x"].astype("float32")
    y = wide * jax.lax.rsqrt(jax.numpy.mean(wide**2, axis=-1, keepdims=True) + params["eps"])
    return (y * x["weight"] if "weight" in x else y).astype(x["x"].dtype)


def _l2_norm(jax, x, params):
    length = jax.numpy.linalg.norm(x["x"], axis=-1, keepdims=True)
    return x["x"] / jax.numpy.maximum(length, params["eps"])


def _batch_norm(jax, x, params):
    mean, var = (x[name][:, None, None] for name in ("mean", "var"))
    return jax.nn.standardize(x["x"], mean=mean, variance=var, epsilon=params["eps"])


def _group_norm_silu(jax, x, params):
    return jax.nn.silu(_group_norm(jax, x, params))


def _adaptive_layer_norm(jax, x, params):
    return modulated(_layer_norm(jax, {"x": x["x"]}, params), x)


FUNCTIONS: dict[str, Function] = {
    "group_norm": _group_norm,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "l2_norm": _l2_norm,
    "batch_norm": _batch_norm,
    "group_norm_silu": _group_norm_silu,
    "adaptive_layer_norm": _adaptive_layer_norm,
}

# jax/_src/nn/functions.py, standardize: algorithm "fast" is the default, E[x^2] - E[x]^2, clipped at 0.
_ONE_PASS = {"one_pass": ("group_norm", "layer_norm")}
ROUNDING: dict[str, Mapping] = dict.fromkeys(
    ("group_norm", "layer_norm", "group_norm_silu", "adaptive_layer_norm"), _ONE_PASS
)
