"""Storage types: what is looked up and expanded."""

from refsd.golden.operations.operation import Operation, entry, values


def _embedding(a, inputs, params):
    return a.embedding(inputs["ids"].values(), a.expand(inputs["weight"]))


def _dequantize(a, inputs, params):
    return values(a, inputs["x"])


OPERATIONS: dict[str, Operation] = {
    "embedding": entry(
        _embedding,
        "Take a row of the table (of any storage type) for each id.",
        {"ids": "[...]", "weight": "[V, D]"},
        "[..., D]",
    ),
    "dequantize": entry(_dequantize, "Expand a block type to float32.", {"x": "[..., D]"}, "[..., D]"),
}
