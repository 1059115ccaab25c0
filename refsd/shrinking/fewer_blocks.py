"""The same case on a model of fewer blocks, levels and layers."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from refsd.components import COMPONENTS
from refsd.components.hollow import fits_of
from refsd.golden.case import Case, Dimension
from refsd.models.unet.tensors import unet_depths
from refsd.numerics.errors import BadInput
from refsd.shrinking.named_axes import sizes_of, with_sizes
from refsd.weights.recipes import size_of

_MODEL = "model/"

Dimensions = Mapping[str, Dimension]


def fewer_blocks(case: Case) -> Iterator[Case]:
    """The case with fewer blocks of one kind, the fewest first; none of a model whose depth is not known here."""
    model, component = case.model, COMPONENTS.get(case.op.removeprefix(_MODEL))
    if model is None or component is None or component.part not in _DEPTHS:
        return
    part, size = component.part, size_of(model, component.part)
    for dimensions in _DEPTHS[part](size):
        sizes = {**dict(model.sizes or ()), **{f"{part}.{name}": value for name, value in dimensions.items()}}
        yield from in_sizes_asked(replace(case, model=replace(model, sizes=tuple(sorted(sizes.items())))))


def in_sizes_asked(case: Case) -> Iterator[Case]:
    """The case with its inputs in the sizes that its model asks for; none where there is no such model."""
    try:
        sizes, fits = sizes_of(case), fits_of(case)
        wanted = {name: fits[name].n for name, n in sizes.items() if name in fits and not fits[name].holds(n)}
        yield with_sizes(case, wanted)
    except BadInput:
        return


def _counted(*names: str, together: tuple[str, ...] = (), least: int = 0) -> Callable[[Any], Iterator[Dimensions]]:
    """Fewer of each of these dimensions, at least `least`; of those that are `together`, as many of each."""

    def fewer(size: Any) -> Iterator[Dimensions]:
        kinds = [(name,) for name in names] + ([together] if together else [])
        for kind in kinds:
            n = getattr(size, kind[0])
            yield from (dict.fromkeys(kind, count) for count in _less(n) if count >= least)

    return fewer


def _less(n: int) -> list[int]:
    """Smaller counts, the fewest first."""
    return [*dict.fromkeys(count for count in (0, 1, 2, n // 2, n - 1) if 0 <= count < n)]


def _mmdit(size) -> Iterator[Dimensions]:
    """MMDiT-X's blocks with a second attention are those that are left of them."""
    for count in _less(size.blocks)[1:] if size.blocks > 1 else ():
        yield {"blocks": count, "dual": tuple(i for i in size.dual if i < count)}
    if size.dual:
        yield {"dual": ()}


def _unet(size) -> Iterator[Dimensions]:
    """Fewer levels, res blocks, transformers, blocks of each transformer, and no middle block."""
    down, up = unet_depths(size)
    plain = {"attention": (), "down": down, "up": up}
    for levels in _less(len(size.widths))[1:]:
        cut = {"down": down[:levels], "up": up[:levels], "widths": size.widths[:levels]}
        yield {**plain, **cut, "cross_only": tuple(level for level in size.cross_only if level < levels)}
    if size.middle is not None:
        yield from ({**plain, "middle": middle} for middle in (None, *_less(size.middle)))
    if size.res_blocks > 1:
        cut = {"down": tuple(of[:1] for of in down), "up": tuple(of[:2] for of in up)}
        yield {**plain, **cut, "res_blocks": 1}
    for level, of in enumerate(down):
        for depth in _less(max((*of, *up[level]))):
            yield {**plain, "down": _capped(down, level, depth), "up": _capped(up, level, depth)}


def _capped(depths: tuple[tuple[int, ...], ...], level: int, most: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(min(most, n) for n in of) if i == level else of for i, of in enumerate(depths))


def _vae(size) -> Iterator[Dimensions]:
    for levels in _less(len(size.widths))[1:]:
        yield {"widths": size.widths[:levels]}
    yield from ({"res_blocks": count} for count in _less(size.res_blocks)[1:])
    if size.attention:
        yield {"attention": False}


# Network -> its size -> the dimensions of smaller ones, the smallest of each kind first.
_DEPTHS: dict[str, Callable[[Any], Iterator[Dimensions]]] = {
    "unet": _unet,
    "mmdit": _mmdit,
    "vae": _vae,
    "zimage": _counted("layers", together=("noise_refiners", "context_refiners")),
    "chroma": _counted("double_blocks", "single_blocks"),
    **dict.fromkeys(("flux", "flux2"), _counted("double_blocks", "single_blocks")),
    **dict.fromkeys(
        (
            *("qwen-image", "qwen-image-layered", "clip", "clip_g", "t5", "qwen3", "qwen2_5_vl", "qwen3_vl"),
            *("mistral", "clip-vision", "siglip"),
        ),
        _counted("layers", least=1),
    ),
    "esrgan": _counted("blocks", least=1),
}
