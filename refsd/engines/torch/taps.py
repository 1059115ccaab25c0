"""Record intermediate results of a diffusers or transformers module under the reference's names.

The key map that reads the model's folder tells which of its tensors make up each of refsd's weights, and so which
layers correspond. The taps are the outputs of linear layers, convolutions and norms. Operations without weights
(activations, attention, RoPE) are judged together with the next layer.
"""

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from refsd.networks.keymap import CONCAT, SAME, SWAP, Source

# Layers whose output channels (last axis, or axis 1 of a picture) are the first axis of their weight. Tools that
# keep weights in few bits put classes made from Linear in its place.
_LAYERS = (
    *("Linear", "Conv2d", "Conv3d", "GroupNorm", "LayerNorm"),
    *("QwenImageCausalConv3d", "WanCausalConv3d", "MiniMaxH3VideoCausalConv3d"),
)


class _Tap(NamedTuple):
    """A tap of the reference, and the layers whose outputs make it up.

    name:    in the reference
    modules: the engine's layers, in the order of their rows in refsd's weight
    swapped: True if the two halves of the channels are swapped
    """

    name: str
    modules: tuple[str, ...]
    swapped: bool


def _taps(sources: Mapping[str, Source], layers: Mapping[str, Any]) -> Iterator[_Tap]:
    for name, source in sources.items():
        modules = tuple(_module(part.removesuffix(".weight"), layers) for part in source.names)
        known = all(_is_layer(layers.get(module)) for module in modules)
        if name.endswith(".weight") and known and source.rule in (SAME, CONCAT, SWAP):
            yield _Tap(name.removesuffix(".weight"), modules, source.rule is SWAP)


def _is_layer(module: Any) -> bool:
    return type(module).__name__ in _LAYERS or any(kind.__name__ == "Linear" for kind in type(module).__mro__)


def _module(name: str, layers: Mapping[str, Any]) -> str:
    """Return the module's name of a layer, given the file's: transformers' files put the model's name before it."""
    inner = name.partition(".")[2]
    return inner if name not in layers and inner in layers else name


def modules_of_taps(model, sources: Mapping[str, Source]) -> dict[str, tuple[str, ...]]:
    """Return the reference's name of each tap -> the engine's modules that make it up."""
    return {tap.name: tap.modules for tap in _taps(sources, dict(model.named_modules()))}


class Bypassed(NamedTuple):
    """A block that was called and called none of its layers, as where its forward was replaced.

    block:   the reference's name of it; "" if the reference has no block of the same layers
    layers:  their number
    outputs: its tensors
    """

    block: str
    layers: int
    outputs: list[Any]


class _Blocks:
    """Find the blocks that run without their layers, by counting the calls of layers during each block's."""

    def __init__(self, wanted: list[_Tap], model):
        self.bypassed: dict[str, Bypassed] = {}
        self._wanted, self._calls, self._before = wanted, 0, []
        self._inside = {
            name: [tap for tap in wanted if any(module.startswith(f"{name}.") for module in tap.modules)]
            for name, _ in model.named_modules()
            if name
        }

    def count(self, *_) -> None:
        self._calls += 1

    def hooks(self, model) -> Iterator[Any]:
        for name, module in model.named_modules():
            if self._inside.get(name):
                yield module.register_forward_pre_hook(lambda *_: self._before.append(self._calls))
                yield module.register_forward_hook(lambda m, x, y, name=name: self._end(name, y))

    def _end(self, name: str, y: Any) -> None:
        # A block that had begun when the hooks were set ends with an empty stack.
        if not self._before or self._before.pop() != self._calls:
            return
        self._calls += 1  # for the blocks around it, which did call what is in them
        inside = self._inside[name]
        outputs = [t.detach().clone() for t in (y if isinstance(y, tuple) else (y,)) if hasattr(t, "detach")]
        self.bypassed[name] = Bypassed(self._of_the_reference(inside), len(inside), outputs)

    def _of_the_reference(self, inside: list[_Tap]) -> str:
        """Return the longest prefix of the reference's names of these taps, if no other tap has it."""
        parts = [tap.name.split(".") for tap in inside]
        same = [names[0] for names in zip(*parts, strict=False) if len({*names}) == 1]
        block = ".".join(same[: min(map(len, parts)) - 1])
        alone = [tap for tap in self._wanted if tap.name.startswith(f"{block}.")]
        return block if block and len(alone) == len(inside) else ""


@contextlib.contextmanager
def listening(
    model, sources: Mapping[str, Source], bypassed: dict[str, Bypassed] | None = None
) -> Iterator[dict[str, Any]]:
    """Record the taps of the calls inside the block. Yields a dict that is filled when the block ends.

    sources:  refsd's name of a weight -> its sources in the model's folder
    bypassed: filled with the blocks that ran without their layers, by the module's names; None: not looked for
    """
    import torch

    layers = dict(model.named_modules())
    wanted = list(_taps(sources, layers))
    blocks = _Blocks(wanted, model) if bypassed is not None else None
    outputs: dict[str, list] = defaultdict(list)
    hooks = [
        # Copy: later layers may write into the output.
        layers[module].register_forward_hook(
            lambda _, x, y, module=module: outputs[module].append(y.detach().clone())
        )
        for module in dict.fromkeys(module for tap in wanted for module in tap.modules)
    ]
    if blocks is not None:
        names = dict.fromkeys(module for tap in wanted for module in tap.modules)
        hooks += [layers[name].register_forward_hook(blocks.count) for name in names]
        hooks += blocks.hooks(model)
    taps: dict[str, Any] = {}
    try:
        yield taps
    finally:
        for hook in hooks:
            hook.remove()
    if blocks is not None and bypassed is not None:
        bypassed |= blocks.bypassed
    for tap in wanted:
        for again, parts in enumerate(zip(*(outputs[module] for module in tap.modules), strict=False)):
            axis = 1 if parts[0].ndim in (4, 5) else -1
            y = torch.cat(parts, axis)
            if tap.swapped:
                y = torch.cat(y.chunk(2, axis)[::-1], axis)
            taps[f"{tap.name}.{again}" if again else tap.name] = y
