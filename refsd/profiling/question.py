"""Put a question to an engine, and write down what its answer shows."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from refsd.golden.engine import Engine
from refsd.golden.given_case import GivenCase
from refsd.golden.recipe import Recipe
from refsd.numerics.errors import BadInput
from refsd.numerics.quantization import Int8Scores, Quantization
from refsd.numerics.tensor import StoredTensor, stored


class Refused(Exception):
    """The engine does not take the question; the message says why."""


class Finding(msgspec.Struct, frozen=True):
    """
    op:       the operation that was asked
    aspect:   what was asked about it: "activations", "sum", "activations beside q8_0 weights"
    value:    the answer in a word or two: "float16"
    evidence: what came back, and for what
    declared: True if Numerics can express it, so that it is held against declarations and profiles
    """

    op: str
    aspect: str
    value: str
    evidence: str
    declared: bool = True


class Questioner:
    """Ask one engine for operations on given tensors."""

    def __init__(self, engine: Engine):
        self.engine = engine
        # Weight type -> how its product rounds the input to few bits (few_bits.py), with the evidence.
        self.rules: dict[str, tuple[Quantization | None, str]] = {}
        # How attention rounds queries and keys to int8 (attention_codes.py), with the evidence; None: not asked.
        self.scores: tuple[Int8Scores | None, str] | None = None

    def ask(
        self, op: str, shape: tuple[int, ...], params: Mapping[str, Any] | None = None, **tensors
    ) -> np.ndarray:
        """Compute one operation. -> y in float64

        shape:   of the answer
        tensors: argument -> an array, taken as float32, or a StoredTensor

        Raises Refused if the engine does not take it, EngineFailure if it fails or answers another shape.
        """
        return self.raw(op, shape, params, **tensors).astype(np.float64)

    def raw(
        self, op: str, shape: tuple[int, ...], params: Mapping[str, Any] | None = None, **tensors
    ) -> np.ndarray:
        """The same, in the dtype of the answer."""
        from refsd.golden.engine import EngineFailure

        given = {name: t if isinstance(t, StoredTensor) else _float32(t) for name, t in tensors.items()}
        recipes = {name: Recipe(t.shape, t.type) for name, t in given.items()}
        case = GivenCase(f"profile/{op}", op, recipes, dict(params or {}), tensors=given)
        reason = self.engine.refuses(case)
        if reason is not None:
            raise Refused(reason)
        try:
            answer = self.engine.run(case, given)
        except BadInput as error:
            raise Refused(str(error)) from None
        if "y" not in answer:
            raise EngineFailure(f"{op}: no output y")
        y = np.asarray(answer["y"])
        if y.shape != shape:
            raise EngineFailure(f"{op}: y has shape {list(y.shape)}, expected {list(shape)}")
        return y


def _float32(x) -> StoredTensor:
    return stored(np.ascontiguousarray(x, np.float32))


class Probe(NamedTuple):
    """
    op:    the operation that it asks for; --ops selects by it
    name:  what it asks, in a few words
    ask:   Raises Refused or EngineFailure
    """

    op: str
    name: str
    ask: Callable[[Questioner], list[Finding]]
