"""Activations by jax.nn."""

from refsd.engines.arrays.function import Function


def _geglu(jax, x, params):
    value, gate = jax.numpy.split(x["x"], 2, axis=-1)
    return value * jax.nn.gelu(gate, approximate=False)


def _swiglu(jax, x, params):
    first, second = jax.numpy.split(x["x"], 2, axis=-1)
    return first * jax.nn.silu(second) if params["second_gates"] else jax.nn.silu(first) * second


def _swiglu_oai(jax, x, params):
    """As openai/gpt-oss writes it."""
    gate = jax.numpy.minimum(x["gate"], params["limit"])
    value = jax.numpy.clip(x["value"], -params["limit"], params["limit"])
    return gate * jax.nn.sigmoid(params["alpha"] * gate) * (value + 1)


FUNCTIONS: dict[str, Function] = {
    "silu": lambda jax, x, params: jax.nn.silu(x["x"]),
    "gelu": lambda jax, x, params: jax.nn.gelu(x["x"], approximate=False),
    "gelu_tanh": lambda jax, x, params: jax.nn.gelu(x["x"], approximate=True),
    "quick_gelu": lambda jax, x, params: x["x"] * jax.nn.sigmoid(1.702 * x["x"]),
    "geglu": _geglu,
    "sigmoid": lambda jax, x, params: jax.nn.sigmoid(x["x"]),
    "tanh": lambda jax, x, params: jax.numpy.tanh(x["x"]),
    "relu": lambda jax, x, params: jax.nn.relu(x["x"]),
    "leaky_relu": lambda jax, x, params: jax.nn.leaky_relu(x["x"], params["slope"]),
    "swiglu": _swiglu,
    "swiglu_oai": _swiglu_oai,
}
