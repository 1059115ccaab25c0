"""Linear layers."""

from refsd.golden.operations.operation import Operation, entry, optional, values


def _linear(a, inputs, params):
    weight = inputs["weight"]
    return a.linear(values(a, inputs["x"]), a.expand(weight), optional(a, inputs, "bias"), weight.type)


OPERATIONS: dict[str, Operation] = {
    "linear": entry(
        _linear,
        "Multiply by a matrix of any storage type, add a bias.",
        {"x": "[..., K]", "weight": "[O, K]", "bias?": "[O]"},
        "[..., O]",
    ),
}
