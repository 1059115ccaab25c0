"""How predictions with and without the prompt become one: beyond classifier-free guidance, with sd-cli's names."""

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from refsd.numerics.errors import BadInput
from refsd.pipelines.options import check_between, default
from refsd.samplers.guidance_variants import scale_schedule

DIFFUSION_LAYERS = (7, 8, 9)  # sd-cli's --skip-layers, chosen for SD 3.5 medium


class GuidanceRule(NamedTuple):
    """Settings of guidance other than its scales. The defaults are plain classifier-free guidance.

    guidance_rescale:   share of CFG rescale, 0 to 1; see samplers.guidance.rescale
    cfg_norm:           strength of ComfyUI's CFGNorm; 0: none. See samplers.guidance_variants.hold_lengths
    apg_eta:            weight of the parallel part of the difference; 1 with the two below 0 is no APG
    apg_momentum:       momentum of the difference from call to call
    apg_norm_threshold: limit of the difference's norm, at the size of SDXL's latent; 0: no limit
    apg_norm_threshold_smoothing: 0 for a sharp limit
    guidance_schedule:  guidance scales of the first steps; the others have --cfg-scale
    skip_layers:        blocks that skip-layer guidance leaves out
    slg_scale:          scale of skip-layer guidance; 0: none
    skip_layer_start, skip_layer_end: share of the steps between which layers are skipped
    slg_uncond:         True to leave the blocks out of the call without the prompt as well, without a call more
    """

    guidance_rescale: float = default("GuidanceRule.guidance_rescale")
    cfg_norm: float = default("GuidanceRule.cfg_norm")
    apg_eta: float = 1.0
    apg_momentum: float = 0.0
    apg_norm_threshold: float = 0.0
    apg_norm_threshold_smoothing: float = 0.0
    guidance_schedule: tuple[float, ...] = ()
    skip_layers: tuple[int, ...] = DIFFUSION_LAYERS
    slg_scale: float = default("GuidanceRule.slg_scale")
    skip_layer_start: float = default("GuidanceRule.skip_layer_start")
    skip_layer_end: float = default("GuidanceRule.skip_layer_end")
    slg_uncond: bool = False

    @property
    def projects(self) -> bool:
        """True if guidance is APG."""
        return (self.apg_eta, self.apg_momentum) != (1.0, 0.0) or self.apg_norm_threshold > 0

    @property
    def skips(self) -> bool:
        """True if some steps leave out layers."""
        return self.slg_scale != 0 or self.slg_uncond

    def changed(self) -> dict[str, Any]:
        """Return the settings that are not the defaults."""
        default = GuidanceRule()
        return {name: value for name, value in self._asdict().items() if value != getattr(default, name)}

    def check(self) -> None:
        """Raise BadInput for a value out of range."""
        check_between(self)
        for flag, value, low, high in (
            ("--extra-sample-args: apg_eta", self.apg_eta, -100, 100),
            ("--extra-sample-args: apg_momentum", self.apg_momentum, -10, 10),
            ("--extra-sample-args: apg_norm_threshold", self.apg_norm_threshold, 0, 1e6),
            ("--extra-sample-args: apg_norm_threshold_smoothing", self.apg_norm_threshold_smoothing, 0, 100),
        ):
            if not (low <= value <= high and math.isfinite(value)):
                raise BadInput(f"{flag} {value}: expected {low:g} to {high:g}")
        if self.guidance_rescale and self.projects:
            raise BadInput("--guidance-rescale: APG limits the guidance already; leave one of them out")

    def check_use(self, title: str, layers: int | None, guided: bool, edits: bool) -> None:
        """Raise BadInput for a setting without effect.

        title:  of the model
        layers: how many layers it can skip; None: it has none that an engine skips
        guided: True if the network is also called without the prompt
        edits:  True if two scales guide it, by text and by image
        """
        other = "--guidance-rescale" if self.guidance_rescale else "apg_eta, apg_momentum, apg_norm_threshold"
        other = "--cfg-norm" if self.cfg_norm else other
        if (self.guidance_rescale or self.cfg_norm or self.projects) and not guided:
            raise BadInput(f"{other}: there is nothing to guide without a --cfg-scale other than 1")
        if self.projects and edits:
            raise BadInput(f"{other}: {title} is guided by text and by image, and APG knows one scale")
        if self.slg_uncond and not guided:
            raise BadInput("slg_uncond: without a --cfg-scale other than 1 there is no call without the prompt")
        if self.skips and layers is None:
            raise BadInput(f"--slg-scale: {title} has no layers that an engine skips; leave it out")
        beyond = [layer for layer in self.skip_layers if not 0 <= layer < (layers or 0)]
        if self.skips and beyond:
            raise BadInput(f"--skip-layers {beyond[0]}: {title} has layers 0 to {(layers or 0) - 1}")


def read_layers(text: str) -> tuple[int, ...]:
    """Read layers as sd-cli does, [7,8,9], or without brackets. Raises BadInput for other text."""
    inside = text.strip().removeprefix("[").removesuffix("]")
    if not re.fullmatch(r"\d{1,4}([, ]+\d{1,4})*", inside, re.ASCII):
        raise BadInput(f"--skip-layers {text[:60]}: expected whole numbers and commas, as [7,8,9]")
    return tuple(map(int, re.split("[, ]+", inside)))


_NUMBERS = "apg_eta", "apg_momentum", "apg_norm_threshold", "apg_norm_threshold_smoothing"
_TRUTH = {"true": True, "1": True, "false": False, "0": False}


def read_extra(text: str) -> Mapping[str, Any]:
    """Read sd-cli's --extra-sample-args, apg_eta=0,guidance_schedule=7x10+1x5 -> fields of GuidanceRule.

    Raises BadInput for another name or a value that cannot be read.
    """
    read: dict[str, Any] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = pair.partition("=")
        try:
            if name == "guidance_schedule":
                read[name] = tuple(scale_schedule(value))
            elif name == "slg_uncond":
                read[name] = _TRUTH[value.lower()]
            elif name in _NUMBERS:
                read[name] = float(value)
            else:
                names = ", ".join([*_NUMBERS, "guidance_schedule", "slg_uncond"])
                raise BadInput(f"--extra-sample-args: {name[:60]!r} is unknown: expected one of {names}")
        except (KeyError, ValueError) as error:
            why = f"expected true or false, found {value[:60]!r}" if isinstance(error, KeyError) else str(error)
            raise BadInput(f"--extra-sample-args: {name}: {why}") from None
    return read
