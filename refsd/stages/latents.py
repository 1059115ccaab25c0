"""Between an autoencoder's latents and the denoiser's: scale and shift, the posterior, the range of pixels."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from refsd.families import LATENT_SCALES, LatentScale
from refsd.golden.recipe import Recipe
from refsd.numerics.errors import BadInput
from refsd.pipelines.autoencoders import Autoencoder
from refsd.stages.stage import REQUIRED, NoDifference, Output, Stage, StageInputs, case, param, part

# What an encoder is shown and a decoder gives: of a tiny one 0..1.
_KINDS = "vae", "tae"


class LatentsRule(NamedTuple):
    """
    scale:     family, kind -> scale and shift; None: the denoiser's latents are the autoencoder's
    split:     moments [N, 2 C, H, W] -> mean, logvar
    deviation: logvar, noise -> what is added to the mean, divided by the deviation of the clipped logvar
    tiny:      kind -> whether pixels are 0..1
    scaled:    whether the encoder's latents are scaled at all, as asked
    """

    scale: Callable[[str, str], LatentScale | None]
    split: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    deviation: Callable[[np.ndarray, np.ndarray], np.ndarray]
    tiny: Callable[[str], bool]
    scaled: Callable[[bool], bool]


def _scale(family: str, kind: str) -> LatentScale | None:
    return None if kind == "tae" else LATENT_SCALES[family]


RULE = LatentsRule(
    scale=_scale,
    split=lambda moments: tuple(np.split(moments, 2, axis=1)),  # type: ignore[return-value]
    deviation=lambda logvar, noise: noise,
    tiny=lambda kind: kind == "tae",
    scaled=lambda scaled: scaled,
)


class _Half:
    """An encoder or decoder whose answer is given. inputs: its last input"""

    def __init__(self, name: str, outputs: dict[str, np.ndarray], dtype: np.dtype):
        self.name, self.dtype, self.module = name, dtype, self
        self._outputs = outputs
        self.circular = None
        self.input = np.empty(0)

    def __call__(self, inputs, source: str):
        (self.input,) = inputs.values()
        return self._outputs


def _run(rule: LatentsRule, inputs: StageInputs) -> dict[str, np.ndarray]:
    t, p = inputs.tensors, inputs.params
    if p["family"] not in LATENT_SCALES or p["kind"] not in _KINDS:
        known = f"expected one of {', '.join(LATENT_SCALES)}, and {' or '.join(_KINDS)}"
        raise BadInput(f"stage/latents: family {p['family']!r}, kind {p['kind']!r}: {known}")
    mean, logvar = rule.split(t["moments"])
    tiny = rule.tiny(p["kind"])
    posterior = {"mean": mean} if p["kind"] == "tae" else {"mean": mean, "logvar": logvar}
    encoder = _Half("encoder", posterior, inputs.dtype)
    decoder = _Half("tae-decoder" if tiny else "vae-decoder", {"out": t["decoded"]}, inputs.dtype)
    # LoadedComponent's part of what Autoencoder asks of it.
    vae = Autoencoder(encoder, decoder, 8, rule.scale(p["family"], p["kind"]))  # type: ignore[arg-type]
    draw = (lambda shape: rule.deviation(logvar, t["noise"])) if p["draw"] else None
    latent = vae.encode(t["picture"], draw, rule.scaled(p["scaled"]))
    picture = vae.decode(t["latent"])
    return {"shown_picture": encoder.input, "latent": latent, "shown_latent": decoder.input, "picture": picture}


def _latent_size(inputs: StageInputs, truth: np.ndarray) -> np.ndarray:
    t, p = inputs.tensors, inputs.params
    mean, logvar = np.split(t["moments"], 2, axis=1)
    drawn = np.exp(np.clip(logvar, -30, 20) / 2) * (1 + np.abs(logvar)) * np.abs(t["noise"])
    scale = _scale(p["family"], p["kind"])
    inner = np.abs(mean) + drawn * (p["draw"] and p["kind"] == "vae")
    return (inner + abs(scale.shift)) * (scale.factor + 1) if scale and p["scaled"] else inner


def _shown_size(inputs: StageInputs, truth: np.ndarray) -> np.ndarray:
    scale = _scale(inputs.params["family"], inputs.params["kind"])
    return np.abs(truth) + (2 * abs(scale.shift) if scale else 0)


def _pixel_size(inputs: StageInputs, truth: np.ndarray) -> np.ndarray:
    return np.abs(truth) + 2


# --- what engines got wrong --------------------------------------------------------------------------------------


def _changed(change: Callable[[LatentScale], LatentScale | None]):
    def scale(family: str, kind: str) -> LatentScale | None:
        if kind == "tae":
            raise NoDifference
        return change(LATENT_SCALES[family])

    return scale


class _ShiftLast(LatentScale):
    """z factor - shift, and its reverse."""

    def to_denoiser(self, z):
        return z * self.factor - self.shift

    def to_vae(self, x):
        return (x + self.shift) / self.factor


class _BothWaysThere(LatentScale):
    def to_vae(self, x):
        return self.to_denoiser(x)


class _BothWaysBack(LatentScale):
    def to_denoiser(self, z):
        return self.to_vae(z)


class _ShiftSubtracted(LatentScale):
    def to_vae(self, x):
        return x / self.factor - self.shift


class _EachChannel(LatentScale):
    """The scale left out of all channels but the first."""

    def to_denoiser(self, z):
        return np.concatenate([super().to_denoiser(z[:, :1]), z[:, 1:]], axis=1)


def _interleaved(moments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return moments[:, ::2], moments[:, 1::2]


def _by_clipped(logvar: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Undo the deviation of the clipped logvar: what is left of it is `wanted`."""
    return wanted / np.exp(np.clip(logvar, -30, 20) / 2)


_KNOWN = (
    part("shift left out", scale=_changed(lambda s: s._replace(shift=0.0))),
    part("scale left out", scale=_changed(lambda s: s._replace(factor=1.0))),
    part("neither scale nor shift", scale=_changed(lambda s: None)),
    part("scaled twice", scale=_changed(lambda s: s._replace(factor=s.factor**2))),
    part("scaled by the reciprocal", scale=_changed(lambda s: s._replace(factor=1 / s.factor))),
    part("shift of the other sign", scale=_changed(lambda s: s._replace(shift=-s.shift))),
    part("shift after the scale", scale=_changed(lambda s: _ShiftLast(*s))),
    part("the same way to the decoder", scale=_changed(lambda s: _BothWaysThere(*s))),
    part("the same way from the encoder", scale=_changed(lambda s: _BothWaysBack(*s))),
    part("shift subtracted for the decoder", scale=_changed(lambda s: _ShiftSubtracted(*s))),
    part("only the first channel scaled", scale=_changed(lambda s: _EachChannel(*s))),
    *(
        part(f"scale and shift of {family}", scale=_changed(lambda s, other=other: other))
        for family, other in LATENT_SCALES.items()
        if family in ("sd1", "sdxl", "sd3", "flux")
    ),
    part("a tiny autoencoder's latents scaled", scale=lambda family, kind: LATENT_SCALES[family]),
    part("mean and logvar swapped", split=lambda moments: tuple(np.split(moments, 2, axis=1))[::-1]),
    part("mean and logvar in turn", split=_interleaved),
    part("logvar not clipped", deviation=lambda logvar, n: _by_clipped(logvar, np.exp(logvar / 2) * n)),
    part("variance for the deviation", deviation=lambda logvar, n: _by_clipped(logvar, np.exp(logvar) * n)),
    part("logvar for the deviation", deviation=lambda logvar, n: _by_clipped(logvar, logvar * n)),
    part("the mean, not drawn", deviation=lambda logvar, n: np.zeros_like(n)),
    part("drawn with deviation 1", deviation=lambda logvar, n: _by_clipped(logvar, n)),
    part("a tiny one's pixels of -1 to 1", tiny=lambda kind: False),
    part("pixels of 0 to 1", tiny=lambda kind: True),
    part("extra channels scaled", scaled=lambda scaled: True),
    part("not scaled", scaled=lambda scaled: False),
    param("drawn where the mean is asked for", draw=True),
)


def _sizes(channels: int) -> dict[str, Recipe]:
    latent, picture = (2, channels, 3, 5), (2, 3, 24, 40)
    return {
        "picture": Recipe(picture, exponent=-17),
        # Some logvar are beyond 20.
        "moments": Recipe((2, 2 * channels, 3, 5), exponent=-12, offset=0.5),
        "noise": Recipe(latent),
        "latent": Recipe(latent, offset=0.125),
        "decoded": Recipe(picture, exponent=-17, offset=0.25),
    }


def _case(label: str, family: str, channels: int, **params):
    return case("latents", label, _sizes(channels), family=family, **params)


_IMAGE = ("item", "channel", "row", "column")
STAGES = (
    Stage(
        "latents",
        "A picture's latent as a denoiser sees it, and a denoiser's as a decoder is shown it.",
        inputs={
            "picture": "[N, 3, 8 H, 8 W]: -1..1",
            "moments": "[N, 2 C, H, W]: the encoder's answer; a tiny one gives its first half alone",
            "noise": "[N, C, H, W]: standard normals of the posterior",
            "latent": "[N, C, H, W]: the denoiser's",
            "decoded": "[N, 3, 8 H, 8 W]: the decoder's answer",
        },
        params={"family": REQUIRED, "kind": "vae", "draw": True, "scaled": True},
        outputs={
            "shown_picture": Output(_IMAGE, _pixel_size, 6),
            "latent": Output(_IMAGE, _latent_size, 12),
            "shown_latent": Output(_IMAGE, _shown_size, 6),
            "picture": Output(_IMAGE, _pixel_size, 6),
        },
        rule=RULE,
        run=_run,
        known=_KNOWN,
        cases=(
            _case("sd1", "sd1", 4),
            _case("sdxl-mean", "sdxl", 4, draw=False),
            _case("sd3", "sd3", 16),
            _case("flux", "flux", 16),
            _case("pix2pix", "sd1", 4, draw=False, scaled=False),
            _case("taesd", "sd1", 4, kind="tae"),
            _case("taef1", "flux", 16, kind="tae"),
        ),
    ),
)
