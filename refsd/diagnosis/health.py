"""The health of a file: everything that names, shapes, types and values show to be wrong."""

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from refsd.diagnosis.lora_card import Card, card, effects
from refsd.diagnosis.statistics import Statistics, statistics
from refsd.diagnosis.stored_bytes import holes, other_types
from refsd.diagnosis.values import Read, judge, read_values
from refsd.families import VARIANTS
from refsd.golden.wording import counted
from refsd.models.catalogue import DENOISERS
from refsd.networks.dimensions import Shape
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.printable import printable
from refsd.numerics.profiles import FLOAT32
from refsd.pipelines.autoencoders import KINDS, open_autoencoder
from refsd.pipelines.loaded_component import load_component
from refsd.weights.checkpoint import Checkpoint, structure
from refsd.weights.culprits import Finding
from refsd.weights.detect import find_components
from refsd.weights.name_groups import few

# Files of at most so many bytes are read whole, as adapters are; 256 MiB of float16 take a second or two.
_SMALL = 2**28
_SHARED = 0.9  # share of all names that a prefix must begin to count as added


class Health(NamedTuple):
    """What is wrong with a file.

    findings: the most telling first; empty for a healthy file
    card:     of an adapter file; None for other files
    read:     the tensors whose values were read
    whole:    True if every value was, False if a sample of each tensor
    """

    findings: list[Finding]
    card: Card | None
    read: list[Read]
    whole: bool = False

    @property
    def verdict(self) -> str:
        """Return "healthy", "odd" if somebody may have made it so on purpose, or "broken"."""
        if not self.findings:
            return "healthy"
        return "broken" if any(finding.sure for finding in self.findings) else "odd"


def examine(
    checkpoint: Checkpoint, whole: bool = False, progress: Callable[[int], None] = lambda _: None
) -> Health:
    """Examine a file; of a large one's values a sample of each tensor, or all of them if `whole`.

    progress: called with the number of bytes of each tensor after it was read
    """
    shapes = {name: header.shape for file in checkpoint.files for name, header in file.headers.items()}
    adapter = card(checkpoint) if checkpoint.adapter is not None else None
    findings: list[Finding] = []
    if adapter is not None:
        findings = list(adapter.findings)
    elif checkpoint.inversion is not None and checkpoint.inversion.wrong:
        findings = [Finding("inversion", checkpoint.inversion.wrong, tuple(n for f in checkpoint.files for n in f))]
    elif checkpoint.foreign is None and checkpoint.family is not None:
        findings = structure(checkpoint)
        unknown = set(checkpoint.unknown)
        if renamed := prefixed(checkpoint.path, {name: of for name, of in shapes.items() if name in unknown}):
            findings = renamed + [finding for finding in findings if finding.kind != "unknown"]
    elif checkpoint.foreign is None:
        findings = prefixed(checkpoint.path, shapes)
    size = sum(header.nbytes for file in checkpoint.files for header in file.headers.values())
    every = whole or adapter is not None or size <= _SMALL
    read = read_values(checkpoint, not every, progress)
    never_read = {name for component in checkpoint.components.values() for name in component.extras}
    found = judge(read, adapter is not None)
    explained = {name for one in found if one.kind == "zero" for name in one.tensors}
    left = [r for r in read if r.name not in explained] if adapter is None else []
    found += [*holes(left), *other_types(left)]
    if checkpoint.results is not None:  # unlike weights, results may be zero, constant or equal
        found = [one for one in found if one.kind == "not finite"]
    if adapter is not None:
        found += effects(adapter.modules, _confirmed(checkpoint, read))
    findings += [one for one in found if one.kind != "constant" or not never_read.issuperset(one.tensors)]
    if whole:
        findings += _unreadable(checkpoint)
    findings = findings or _autoencoder(checkpoint)
    return Health(sorted(findings, key=lambda finding: not finding.sure), adapter, read, every)


def _confirmed(checkpoint: Checkpoint, read: list[Read]) -> dict[str, Statistics]:
    """Return each tensor's statistics; a tensor whose sample is all zero is read as a whole."""
    files = {name: file for file in checkpoint.files for name in file}
    return {
        r.name: r.of if r.of.whole or r.of.low or r.of.high else statistics(files[r.name][r.name], False)
        for r in read
    }


def _autoencoder(checkpoint: Checkpoint) -> list[Finding]:
    """Find an autoencoder whose latents have more or fewer channels than the denoiser's."""
    held, arithmetic = checkpoint.components, Arithmetic(FLOAT32)
    network, autoencoder = (next((name for name in some if name in held), "") for some in (DENOISERS, KINDS))
    variant = VARIANTS.get(checkpoint.family.name) if checkpoint.family else None
    if not network or not autoencoder or variant is None or variant.pixel_space or not variant.draws:
        return []
    denoiser = load_component(checkpoint, network, arithmetic)
    try:
        open_autoencoder(checkpoint, arithmetic, denoiser.latent_channels)
    except BadInput as error:
        return [
            Finding("foreign", str(error).removeprefix(f"{checkpoint.path}: "), tuple(held[autoencoder].weights))
        ]
    return []


def prefixed(path: Path, shapes: Mapping[str, Shape]) -> list[Finding]:
    """Find a prefix without which the names are those of a model."""
    starts = Counter(".".join(name.split(".")[:n]) + "." for name in shapes for n in (1, 2) if name.count(".") >= n)
    for prefix, n in starts.most_common(4):
        if n < _SHARED * len(shapes) or n < 2:
            continue
        bare = {name.removeprefix(prefix): shape for name, shape in shapes.items()}
        found, rest = find_components(path, bare)
        if found and 2 * len(rest) < len(bare):
            text = f'{counted(n, "tensor")} renamed: their names begin with "{printable(prefix, 120)}"; without it '
            text += f"they are those of {', '.join(found)}"
            return [Finding("renamed", text, tuple(shapes))]
    return []


def _unreadable(checkpoint: Checkpoint) -> list[Finding]:
    names = {
        name: header.type
        for file in checkpoint.files
        for name, header in file.headers.items()
        if not file.is_readable(name) and name not in file.unexpanded
    }
    if not names:
        return []
    listed = few([f"{printable(name, 120)} ({type})" for name, type in names.items()])
    text = f"{counted(len(names), 'tensor')} of types that refsd cannot read: {listed}"
    return [Finding("unreadable", text, tuple(names), sure=False)]
