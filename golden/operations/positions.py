"""Embeddings of position and time."""

from refsd.golden.operations.operation import REQUIRED, Operation, entry, values


def _timestep_embedding(a, inputs, params):
    return a.timestep_embedding(values(a, inputs["t"]), params["dim"], params["max_period"])


OPERATIONS: dict[str, Operation] = {
    "timestep_embedding": entry(
        _timestep_embedding,
        "Cosines, then sines, of t at geometrically spaced frequencies; a zero at the end if dim is odd.",
        {"t": "[N]"},
        "[N, dim]",
        dim=REQUIRED,
        max_period=10000.0,
    ),
}
