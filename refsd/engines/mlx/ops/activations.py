"""Activations by mlx.nn."""

from refsd.engines.arrays.function import Function


def _geglu(mlx, x, params):
    value, gate = mlx.core.split(x["x"], 2, axis=-1)
    return value * mlx.nn.gelu(gate)


def _swiglu(mlx, x, params):
    first, second = mlx.core.split(x["x"], 2, axis=-1)
    return first * mlx.nn.silu(second) if params["second_gates"] else mlx.nn.silu(first) * second


def _swiglu_oai(mlx, x, params):
    """As openai/gpt-oss writes it."""
    gate = mlx.core.minimum(x["gate"], params["limit"])
    value = mlx.core.clip(x["value"], -params["limit"], params["limit"])
    return gate * mlx.core.sigmoid(params["alpha"] * gate) * (value + 1)


FUNCTIONS: dict[str, Function] = {
    "silu": lambda mlx, x, params: mlx.nn.silu(x["x"]),
    "gelu": lambda mlx, x, params: mlx.nn.gelu(x["x"]),
    "gelu_tanh": lambda mlx, x, params: mlx.nn.gelu_approx(x["x"]),
    "quick_gelu": lambda mlx, x, params: mlx.nn.gelu_fast_approx(x["x"]),
    "geglu": _geglu,
    "sigmoid": lambda mlx, x, params: mlx.core.sigmoid(x["x"]),
    "tanh": lambda mlx, x, params: mlx.core.tanh(x["x"]),
    "relu": lambda mlx, x, params: mlx.nn.relu(x["x"]),
    "leaky_relu": lambda mlx, x, params: mlx.nn.leaky_relu(x["x"], params["slope"]),
    "swiglu": _swiglu,
    "swiglu_oai": _swiglu_oai,
}
# mlx/backend/cpu/unary_ops.h, Sigmoid: exp gives a number of the dtype, and so do the sums. That leaky_relu rounds
# likewise is inferred from its answers.
ROUNDED = dict.fromkeys(
    ("silu", "sigmoid", "leaky_relu"),
    "on the CPU MLX rounds between its steps to the dtype, which no profile declares",
)
