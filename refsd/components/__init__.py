"""Components that refsd can run: their arguments, their outputs, and the checks of inputs.

All components name their tensors alike: a denoiser takes those of x, timesteps, context, y, guidance, context_mask
and hint that it uses, and returns out; a text encoder takes input_ids and attention_mask. Timesteps are in the
units of the original's forward.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from refsd.components.checks import check as check_inputs
from refsd.models.catalogue import AUTOENCODERS, DENOISERS, LANGUAGE_MODELS, NETWORKS, pages
from refsd.module import Module, WeightCache
from refsd.networks.component import IDS, MASK, VALUE, Argument, Component
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import StoredTensor
from refsd.weights.adapters import AdapterFile
from refsd.weights.checkpoint import Checkpoint
from refsd.weights.loras import load as load_adapters


def _collect() -> dict[str, Component]:
    """Collect COMPONENTS of every model's folder, in the order of their networks; those without one last."""
    order = [*NETWORKS, None]
    rows = [row for page in pages("component") for row in getattr(page, "COMPONENTS", {}).items()]
    return dict(sorted(rows, key=lambda row: order.index(row[1].part)))


COMPONENTS = _collect()

# Alias -> components; it stands for the first of them that the checkpoint has.
ALIASES: dict[str, tuple[str, ...]] = {
    "diffusion": DENOISERS,
    "clip_l": ("clip",),
    "t5xxl": ("t5",),
    "llm": LANGUAGE_MODELS,
    "vae-encoder": tuple(f"{name}-encoder" for name in AUTOENCODERS),
    "vae-decoder": tuple(f"{name}-decoder" for name in AUTOENCODERS),
}


def offered() -> list[str]:
    """Return the names that `--component` accepts: components of checkpoints, and aliases."""
    named = [name for name, component in COMPONENTS.items() if component.part is not None]
    return [*named, *(alias for alias in ALIASES if alias not in COMPONENTS)]


def resolve(checkpoint: Checkpoint, name: str) -> str:
    """Return the component that a name or alias stands for in this checkpoint. Raises BadInput if it has none."""
    if name not in ALIASES:
        return name
    held = next((one for one in ALIASES[name] if COMPONENTS[one].part in checkpoint.components), None)
    if held is None:
        needs, holds = " or ".join(ALIASES[name]), ", ".join(checkpoint.components)
        raise BadInput(f"{checkpoint.path}: {name} needs {needs}; the file holds {holds}")
    return held


class _Beside(Mapping[str, StoredTensor]):
    """One component's weights plus another's. names: name here -> name there"""

    def __init__(
        self, own: Mapping[str, StoredTensor], other: Mapping[str, StoredTensor], names: Mapping[str, str]
    ):
        self.own, self.other, self.names = own, other, names

    def __getitem__(self, name: str) -> StoredTensor:
        return self.other[self.names[name]] if name in self.names else self.own[name]

    def __contains__(self, name: object) -> bool:
        return name in self.names or name in self.own

    def __iter__(self) -> Iterator[str]:
        yield from self.own
        yield from self.names

    def __len__(self) -> int:
        return len(self.own) + len(self.names)


def load(
    checkpoint: Checkpoint,
    name: str,
    arithmetic: Arithmetic,
    cache: WeightCache | None = None,
    loras: Sequence[tuple[AdapterFile, float]] = (),
) -> tuple[Module, dict[str, Any]]:
    """Return a component's weights as a Module, and the params of its config. Raises BadInput if it is missing."""
    component = COMPONENTS[name]
    held = checkpoint.components.get(component.part or "")
    if held is None:
        there = ", ".join(checkpoint.components)
        raise BadInput(f"{checkpoint.path}: {name} needs {component.part or 'a case'}; the file holds {there}")
    params = {param: held.config[param] for param in component.params if param in held.config}
    adapters = load_adapters(loras, component.part or "", held.weights, arithmetic)
    weights: Mapping[str, StoredTensor] = held.weights
    for other, joined in component.beside.items():
        if other in checkpoint.components:
            more = checkpoint.components[other].weights
            names = joined(held.weights.shapes, more.shapes, more.file.path)
            weights = _Beside(weights, more, names)
    return Module(weights, arithmetic, cache=cache, adapters=adapters), params


def forward(
    name: str,
    m: Module,
    inputs: Mapping[str, np.ndarray],
    params: Mapping[str, Any] | None = None,
    source: str = "inputs",
    also: bool = False,
) -> dict[str, np.ndarray]:
    """Run a component once.

    inputs: argument name -> array of any float dtype; integers for token ids
    source: name of the inputs' origin, for error messages
    also:   return also outputs that engines are not judged by
    -> output name -> array in the storage dtype

    Raises BadInput for inputs or params that are missing, unknown, misshapen or not finite.
    """
    component = COMPONENTS[name]
    check(name, m, inputs, params or {}, source)
    arguments = {
        argument: _admit(m, inputs[argument], wanted.kind)
        for argument, wanted in component.arguments.items()
        if argument in inputs
    }
    y = component.run(m, **arguments, **{**component.params, **(params or {})})
    if isinstance(y, dict):
        return {output: part for output, part in y.items() if also or output not in component.also}
    names = [*component.outputs, *component.also]
    parts = dict(zip(names, y if isinstance(y, tuple) else (y,), strict=True))
    return parts if also else {output: parts[output] for output in component.outputs}


def check(
    name: str, m: Module, inputs: Mapping[str, np.ndarray], params: Mapping[str, Any], source: str = "inputs"
) -> None:
    """Raise BadInput, in one line, unless `forward` accepts these inputs and params."""
    check_inputs(name, COMPONENTS[name], m, inputs, params, source)


def _admit(m: Module, x: np.ndarray, kind: str) -> np.ndarray:
    if kind is IDS or kind is MASK:
        return np.asarray(x, np.int64)
    return m.store(x) if kind is VALUE else np.asarray(x, m.arithmetic.numerics.compute_dtype)


def components_help() -> str:
    """Return the list of components: a paragraph on each component's tensors, then the aliases."""
    paragraphs = []
    for name, component in COMPONENTS.items():
        if component.part is not None:
            takes = [_described(argument, wanted) for argument, wanted in component.arguments.items()]
            outputs = {**component.outputs, **component.also}
            gives = [f"{output} [{shape.replace(' ', ', ')}]" for output, shape in outputs.items()]
            paragraphs.append(f"{name}: {', '.join(takes)} -> {', '.join(gives)}")
    aliases = [f"{alias} is {' or '.join(names)}" for alias, names in ALIASES.items()]
    return "\n\n".join([*paragraphs, f"Other names: {'; '.join(aliases)}."])


def _described(name: str, argument: Argument) -> str:
    optional = "optional; " if argument.optional else ""
    return (
        f"{name} [{argument.shape.replace(' ', ', ')}] ({optional}{argument.kind.split(',')[0]}; {argument.what})"
    )
