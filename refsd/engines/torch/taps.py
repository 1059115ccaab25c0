"""What a diffusers or transformers module computed on the way, by the reference's names.

A layer with weights is found by them: the key map that reads the folder says which of its tensors make one of ours.
So the outputs of linear layers, convolutions and norms are shown; what stands between two of them (activations,
attention, RoPE) is judged together with the layer after it.
"""

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from refsd.networks.keymap import CONCAT, SAME, SWAP, Source

# Layers whose output's last axis, or second of a picture, is the first axis of their weight.
_LAYERS = ("Linear", "Conv2d", "GroupNorm", "LayerNorm")


class _Tap(NamedTuple):
    """
    name:    the reference's
    modules: the peer's layers that make it, in the order in which their rows stand in our weight
    swapped: the halves of its channels stand in the other order
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
    """A file's name of a layer -> the module's: transformers' files have the model's own name before it."""
    inner = name.partition(".")[2]
    return inner if name not in layers and inner in layers else name


def modules_of_taps(model, sources: Mapping[str, Source]) -> dict[str, tuple[str, ...]]:
    """The reference's name of a tap -> the peer's modules that make it."""
    return {tap.name: tap.modules for tap in _taps(sources, dict(model.named_modules()))}


@contextlib.contextmanager
def listening(model, sources: Mapping[str, Source]) -> Iterator[dict[str, Any]]:
    """Yield what becomes the taps of the calls inside the block.

    sources: our name of a weight -> the names in the peer's folder that make it
    """
    import torch

    layers = dict(model.named_modules())
    wanted = list(_taps(sources, layers))
    outputs: dict[str, list] = defaultdict(list)
    hooks = [
        # Copies: what follows may write into them.
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
            axis = 1 if parts[0].ndim == 4 else -1
            y = torch.cat(parts, axis)
            if tap.swapped:
                y = torch.cat(y.chunk(2, axis)[::-1], axis)
            taps[f"{tap.name}.{again}" if again else tap.name] = y
