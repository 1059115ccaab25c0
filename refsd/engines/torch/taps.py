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

# Layers whose output channels (last axis, or axis 1 of a picture) are the first axis of their weight.
_LAYERS = ("Linear", "Conv2d", "GroupNorm", "LayerNorm", "QwenImageCausalConv3d", "WanCausalConv3d")


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
        known = all(type(layers.get(module)).__name__ in _LAYERS for module in modules)
        if name.endswith(".weight") and known and source.rule in (SAME, CONCAT, SWAP):
            yield _Tap(name.removesuffix(".weight"), modules, source.rule is SWAP)


def _module(name: str, layers: Mapping[str, Any]) -> str:
    """Return the module's name of a layer, given the file's: transformers' files put the model's name before it."""
    inner = name.partition(".")[2]
    return inner if name not in layers and inner in layers else name


def modules_of_taps(model, sources: Mapping[str, Source]) -> dict[str, tuple[str, ...]]:
    """Return the reference's name of each tap -> the engine's modules that make it up."""
    return {tap.name: tap.modules for tap in _taps(sources, dict(model.named_modules()))}


@contextlib.contextmanager
def listening(model, sources: Mapping[str, Source]) -> Iterator[dict[str, Any]]:
    """Record the taps of the calls inside the block. Yields a dict that is filled when the block ends.

    sources: refsd's name of a weight -> its sources in the model's folder
    """
    import torch

    layers = dict(model.named_modules())
    wanted = list(_taps(sources, layers))
    outputs: dict[str, list] = defaultdict(list)
    hooks = [
        # Copy: later layers may write into the output.
        layers[module].register_forward_hook(
            lambda _, x, y, module=module: outputs[module].append(y.detach().clone())
        )
        for module in dict.fromkeys(module for tap in wanted for module in tap.modules)
    ]
    taps: dict[str, Any] = {}
    try:
        yield taps
    finally:
        for hook in hooks:
            hook.remove()
    for tap in wanted:
        for again, parts in enumerate(zip(*(outputs[module] for module in tap.modules), strict=False)):
            axis = 1 if parts[0].ndim in (4, 5) else -1
            y = torch.cat(parts, axis)
            if tap.swapped:
                y = torch.cat(y.chunk(2, axis)[::-1], axis)
            taps[f"{tap.name}.{again}" if again else tap.name] = y
