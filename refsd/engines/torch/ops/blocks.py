"""Table look-up by torch."""

from refsd.engines.torch.ops.function import Function

FUNCTIONS: dict[str, Function] = {
    "embedding": lambda torch, x, params: torch.nn.functional.embedding(x["ids"], x["weight"]),
}
