"""Embeddings of position and time, composed in float32 as users of JAX write them."""

import math

from refsd.engines.arrays.function import Function


def _timestep_embedding(jax, x, params):
    jnp, half = jax.numpy, params["dim"] // 2
    rate = -math.log(params["max_period"]) / (half - params["freq_shift"])
    angle = params["scale"] * x["t"].astype("float32")[:, None] * jnp.exp(rate * jnp.arange(half, dtype="float32"))
    parts = [jnp.sin(angle), jnp.cos(angle)] if params["sin_first"] else [jnp.cos(angle), jnp.sin(angle)]
    y = jnp.concatenate(parts, axis=-1)
    return jnp.pad(y, ((0, 0), (0, params["dim"] % 2))).astype(x["t"].dtype)


def _angles(jax, ids, params):
    """ids [N, L, A] -> [N, L, 1, pairs]"""
    jnp = jax.numpy
    parts = [
        ids[..., axis, None].astype("float32") / params["theta"] ** (jnp.arange(0, dim, 2, dtype="float32") / dim)
        for axis, dim in enumerate(params["axes_dim"])
    ]
    return jnp.concatenate(parts, axis=-1)[:, :, None]


def _rope(jax, x, params):
    jnp = jax.numpy
    angle, turned = _angles(jax, x["ids"], params), sum(params["axes_dim"])
    wide, rest = x["x"][..., :turned].astype("float32"), x["x"][..., turned:]
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    a, b = jnp.split(wide, 2, axis=-1) if params["halves"] else (wide[..., 0::2], wide[..., 1::2])
    pair = [a * cos - b * sin, a * sin + b * cos]
    y = jnp.concatenate(pair, axis=-1) if params["halves"] else jnp.stack(pair, axis=-1).reshape(wide.shape)
    return jnp.concatenate([y.astype(rest.dtype), rest], axis=-1)


def _sincos_positions(jax, x, params):
    jnp, quarter = jax.numpy, params["dim"] // 4
    f = 10000.0 ** (-jnp.arange(quarter, dtype="float32") / quarter)
    row, column = (x[name].astype("float32")[:, None] * f for name in ("rows", "columns"))
    shape = (len(row), len(column), quarter)
    parts = [jnp.broadcast_to(t, shape) for t in (column[None], row[:, None])]
    y = jnp.concatenate([g(t) for t in parts for g in (jnp.sin, jnp.cos)], axis=-1)
    return y.reshape(-1, params["dim"]).astype(x["rows"].dtype)


FUNCTIONS: dict[str, Function] = {
    "timestep_embedding": _timestep_embedding,
    "rope": _rope,
    "sincos_positions": _sincos_positions,
}
