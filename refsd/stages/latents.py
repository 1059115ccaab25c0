"""Convert between an autoencoder's latents and the denoiser's: scale and shift, posterior, range of pixels."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from refsd.golden.recipe import Recipe
from refsd.models.vae.latents import LATENT_SCALES, LatentScale
from refsd.models.vae_flux2 import pack
from refsd.numerics.errors import BadInput
from refsd.pipelines.autoencoders import Autoencoder
from refsd.stages.stage import Change, Mutant, NoDifference, Output, Params, Stage, StageInputs, case, param, part

# Kinds of autoencoder; a tiny one ("tae") takes and gives pixels of 0..1, others of -1..1.
_KINDS = "vae", "tae"


def _scale(family: str, kind: str) -> LatentScale | None:
    return None if kind == "tae" else LATENT_SCALES.get(family)


# eps of FLUX.2's batch norm. Source: black-forest-labs/flux2, autoencoder.py.
_EPS = 1e-4


def _deviations(scale: LatentScale | None, mean: np.ndarray, spread: np.ndarray) -> LatentScale:
    """Return the scale (z - mean) / deviation * factor. FLUX.2's spread is a variance, and it has no factor.

    Source: diffusers StableDiffusionXLImg2ImgPipeline.prepare_latents, latents_mean and latents_std.
    """
    if scale is None:
        return LatentScale(1 / np.sqrt(spread + _EPS), mean, "")  # type: ignore[arg-type]
    return LatentScale(scale.factor / spread, mean, "")  # type: ignore[arg-type]


class LatentsRule(NamedTuple):
    """The parts of the rule.

    scale:     family, kind -> scale and shift; None: the denoiser takes the autoencoder's latents as they are
    own:       scale and shift that the case has of its own -> scale and shift
    channels:  scale and shift, mean and spread of each channel -> scale and shift per channel
    split:     moments [N, 2 C, H, W] -> mean, logvar
    deviation: logvar, noise -> noise that is multiplied by exp(clipped logvar / 2) and added to the mean
    tiny:      kind -> True if pixels are 0..1
    scaled:    True if the case asks for scaled latents -> True if they are scaled
    """

    scale: Callable[[str, str], LatentScale | None] = _scale
    own: Callable[[LatentScale], LatentScale | None] = lambda scale: scale
    channels: Callable[[LatentScale | None, np.ndarray, np.ndarray], LatentScale | None] = _deviations
    split: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] = lambda moments: tuple(
        np.split(moments, 2, axis=1)
    )  # type: ignore[return-value]
    deviation: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda logvar, noise: noise
    tiny: Callable[[str], bool] = lambda kind: kind == "tae"
    scaled: Callable[[bool], bool] = lambda scaled: scaled


RULE = LatentsRule()


class _Half:
    """Stands in for an encoder or decoder: returns given outputs. input: its last input"""

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
    packed, own = p["family"] == "flux2", _own(p)
    if (not packed and own is None and p["family"] not in LATENT_SCALES) or p["kind"] not in _KINDS:
        known = f"expected one of {', '.join(LATENT_SCALES)}, and {' or '.join(_KINDS)}"
        raise BadInput(f"stage/latents: family {p['family']!r}, kind {p['kind']!r}: {known}")
    mean, logvar = rule.split(t["moments"])
    tiny = rule.tiny(p["kind"])
    posterior = {"mean": mean} if p["kind"] == "tae" else {"mean": mean, "logvar": logvar}
    encoder = _Half("encoder", posterior, inputs.dtype)
    decoder = _Half("tae-decoder" if tiny else "vae-decoder", {"out": t["decoded"]}, inputs.dtype)
    scale = rule.scale(p["family"], p["kind"]) if own is None else rule.own(own)
    statistics = _statistics_of(inputs)
    if statistics is not None:
        scale = rule.channels(scale, *statistics)
    # _Half has those attributes of LoadedComponent that Autoencoder uses.
    vae = Autoencoder(encoder, decoder, 8, scale, packed)  # type: ignore[arg-type]
    draw = (lambda shape: rule.deviation(logvar, t["noise"])) if p["draw"] else None
    latent = vae.encode(t["picture"], draw, rule.scaled(p["scaled"]))
    picture = vae.decode(t["latent"])
    return {"shown_picture": encoder.input, "latent": latent, "shown_latent": decoder.input, "picture": picture}


def _own(params: Params) -> LatentScale | None:
    """Return the scale and shift of a case that names no family with one."""
    return None if params["factor"] is None else LatentScale(params["factor"], params["shift"], "")


def _statistics_of(inputs: StageInputs) -> tuple[np.ndarray, np.ndarray] | None:
    """Return means and spreads of channels, [1, C, 1, 1], from the inputs or the parameters."""
    t, p = inputs.tensors, inputs.params
    given = (t["channel_mean"], t["channel_spread"]) if "channel_mean" in t else (p["means"], p["spreads"])
    if given[0] is None:
        return None
    mean, spread = (np.asarray(y, inputs.dtype)[None, :, None, None] for y in given)
    return mean, spread


def _right_scale(inputs: StageInputs) -> LatentScale | None:
    p, statistics = inputs.params, _statistics_of(inputs)
    scale = _own(p) or _scale(p["family"], p["kind"])
    return scale if statistics is None else _deviations(scale, *statistics)


def _latent_size(inputs: StageInputs, truth: np.ndarray) -> np.ndarray:
    t, p = inputs.tensors, inputs.params
    mean, logvar = np.split(t["moments"], 2, axis=1)
    drawn = np.exp(np.clip(logvar, -30, 20) / 2) * (1 + np.abs(logvar)) * np.abs(t["noise"])
    scale = _right_scale(inputs)
    inner = np.abs(mean) + drawn * (p["draw"] and p["kind"] == "vae")
    inner = pack(inner) if p["family"] == "flux2" else inner
    return (inner + abs(scale.shift)) * (scale.factor + 1) if scale and p["scaled"] else inner


def _shown_size(inputs: StageInputs, truth: np.ndarray) -> np.ndarray:
    scale = _right_scale(inputs)
    shift = np.max(np.abs(scale.shift)) if scale else 0.0
    return np.abs(truth) + 2 * shift


def _pixel_size(inputs: StageInputs, truth: np.ndarray) -> np.ndarray:
    return np.abs(truth) + 2


# --- what engines got wrong --------------------------------------------------------------------------------------


def _scaled(name: str, change: Callable[[LatentScale], LatentScale | None]) -> Mutant[Change]:
    """Return a known bug of the scale, of a family or the case's own."""

    def scale(family: str, kind: str) -> LatentScale | None:
        if kind == "tae" or family not in LATENT_SCALES:
            raise NoDifference
        return change(LATENT_SCALES[family])

    return part(name, scale=scale, own=change)


class _ShiftLast(LatentScale):
    """z * factor - shift, and its inverse."""

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


class _ShiftOffFirst(LatentScale):
    """The encoder's (z - shift), divided by the factor, where the decoder takes z / factor + shift."""

    def to_vae(self, x):
        return (x - self.shift) / self.factor


class _EachChannel(LatentScale):
    """Only the first channel is scaled."""

    def to_denoiser(self, z):
        return np.concatenate([super().to_denoiser(z[:, :1]), z[:, 1:]], axis=1)


def _statistics(change: Callable[..., Any]):
    """change: scale, means, spreads -> wrong scale; None means no difference, unless the family has no scale"""

    def channels(scale: LatentScale | None, mean: np.ndarray, spread: np.ndarray) -> LatentScale | None:
        found = change(scale, mean, spread)
        if found is None and scale is not None:
            raise NoDifference
        return found

    return channels


def _of_the_first_channel(scale, mean, spread):
    return _deviations(scale, *(np.broadcast_to(y[:, :1], y.shape) for y in (mean, spread)))


def _other_spread(scale, mean, spread):
    return LatentScale(scale.factor / np.sqrt(spread) if scale else 1 / (spread + _EPS), mean, "")


def _without_factor(scale, mean, spread):
    return LatentScale(1 / spread, mean, "") if scale else _deviations(scale, mean, spread)


def _scaled_first(scale, mean, spread):
    return (
        LatentScale(scale.factor / spread, mean / scale.factor, "") if scale else _deviations(scale, mean, spread)
    )


def _other_order(scale, mean, spread):
    """Read the statistics of packed latents as (row, column, channel) instead of (channel, row, column)."""
    if mean.shape[1] % 4 or scale is not None:
        raise NoDifference
    order = np.arange(mean.shape[1]).reshape(-1, 4).T.ravel()
    return _deviations(scale, mean[:, order], spread[:, order])


class _OneWay:
    """A scale without the channels' statistics in one direction.

    right: with the statistics; plain: without them; without: name of the method that uses `plain`
    """

    def __init__(self, right: LatentScale, plain: LatentScale | None, without: str):
        self._right, self._plain, self._without = right, plain, without

    def _way(self, name: str, z: np.ndarray) -> np.ndarray:
        scale = self._plain if name == self._without else self._right
        return z if scale is None else getattr(scale, name)(z)

    def to_denoiser(self, z):
        return self._way("to_denoiser", z)

    def to_vae(self, x):
        return self._way("to_vae", x)


def _one_way(without: str):
    return lambda scale, mean, spread: _OneWay(_deviations(scale, mean, spread), scale, without)


def _by_clipped(logvar: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Divide by the deviation of the clipped logvar, so that multiplying by it gives `wanted`."""
    return wanted / np.exp(np.clip(logvar, -30, 20) / 2)


# Families whose scales are taken for others'.
_FAMILIES = "sd1", "sdxl", "sd3", "flux"

_KNOWN = (
    _scaled("shift left out", lambda s: s._replace(shift=0.0)),
    _scaled("scale left out", lambda s: s._replace(factor=1.0)),
    _scaled("neither scale nor shift", lambda s: None),
    _scaled("scaled twice", lambda s: s._replace(factor=s.factor**2)),
    _scaled("scaled by the reciprocal", lambda s: s._replace(factor=1 / s.factor)),
    _scaled("shift of the other sign", lambda s: s._replace(shift=-s.shift)),
    _scaled("shift after the scale", lambda s: _ShiftLast(*s)),
    _scaled("the same way to the decoder", lambda s: _BothWaysThere(*s)),
    _scaled("the same way from the encoder", lambda s: _BothWaysBack(*s)),
    _scaled("shift subtracted for the decoder", lambda s: _ShiftSubtracted(*s)),
    _scaled("the shift taken off before the division, for the decoder", lambda s: _ShiftOffFirst(*s)),
    _scaled("only the first channel scaled", lambda s: _EachChannel(*s)),
    *(
        _scaled(f"scale and shift of {family}", lambda s, other=other: other)
        for family, other in LATENT_SCALES.items()
        if family in _FAMILIES
    ),
    *(
        part(
            f"scale and shift of {family}, not the channels' statistics",
            channels=lambda scale, mean, spread, other=LATENT_SCALES[family]: other,
        )
        for family in _FAMILIES
    ),
    part("a tiny autoencoder's latents scaled", scale=lambda family, kind: LATENT_SCALES.get(family)),
    *(
        part(name, channels=_statistics(change))
        for name, change in (
            ("statistics of channels left out", lambda s, mean, spread: s),
            ("means of channels left out", lambda s, m, d: _deviations(s, 0 * m, d)),
            ("spreads of channels left out", lambda s, m, d: LatentScale(s.factor if s else 1.0, m, "")),
            ("means and spreads of the first channel for all", _of_the_first_channel),
            ("a channel's deviation taken for its variance, or the variance for the deviation", _other_spread),
            ("multiplied by the deviation", lambda s, m, d: _deviations(s, m, 1 / d) if s else None),
            ("scale left out beside the channels' statistics", _without_factor),
            ("scaled before the means are subtracted", _scaled_first),
            ("eps left out of the variance", lambda s, m, d: None if s else _deviations(s, m, d - _EPS)),
            ("statistics of channels on the way from the encoder alone", _one_way("to_vae")),
            ("statistics of channels on the way to the decoder alone", _one_way("to_denoiser")),
            ("statistics in the order of rows, columns, channels", _other_order),
        )
    ),
    part("mean and logvar swapped", split=lambda moments: tuple(np.split(moments, 2, axis=1))[::-1]),
    part("mean and logvar in turn", split=lambda moments: (moments[:, ::2], moments[:, 1::2])),
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


def sizes(channels: int, packed: bool = False) -> dict[str, Recipe]:
    """Return the inputs without statistics. channels: of the denoiser's latent; packed: 2x2, as FLUX.2's"""
    if packed:
        picture, latent, moments = (2, 3, 32, 48), (2, channels // 4, 4, 6), (2, channels // 2, 4, 6)
    else:
        picture, latent, moments = (2, 3, 24, 40), (2, channels, 3, 5), (2, 2 * channels, 3, 5)
    return {
        "picture": Recipe(picture, exponent=-17),
        # Some logvar of those that are not packed exceed 20, where they are clipped.
        "moments": Recipe(moments, exponent=-14 if packed else -12, offset=0.5),
        "noise": Recipe(latent),
        "latent": Recipe((2, channels, 2, 3) if packed else latent, offset=0.125),
        "decoded": Recipe(picture, exponent=-17, offset=0.25),
    }


def _case(label: str, family: str, channels: int, **params):
    return case("latents", label, sizes(channels), family=family, **params)


def _by_channel(label: str, family: str, **params):
    """A case with means and spreads per channel; FLUX.2's latents are packed 2x2, and some variances are small."""
    channels, packed = (12, True) if family == "flux2" else (4, False)
    spread = {"exponent": -23, "offset": 2.0**-10} if packed else {"exponent": -17, "offset": 0.25}
    statistics = _means(channels) | {"channel_spread": Recipe((channels,), data="positive", **spread)}
    return case("latents", label, sizes(channels, packed) | statistics, family=family, **params)


def _means(channels: int) -> dict[str, Recipe]:
    return {"channel_mean": Recipe((channels,), exponent=-17)}


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
            "channel_mean?": "[C]: of the autoencoder's latents; FLUX.2's are packed first",
            "channel_spread?": "[C]: deviations; of FLUX.2's batch norm variances, whose eps is 1e-4",
        },
        # Of a family that refsd does not know: its own factor and shift, and means and spreads as lists.
        params={
            "family": "",
            "kind": "vae",
            "draw": True,
            "scaled": True,
            "factor": None,
            "shift": 0.0,
            "means": None,
            "spreads": None,
        },
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
            _by_channel("sdxl-by-channel", "sdxl"),
            _by_channel("flux2", "flux2", draw=False),
        ),
    ),
)
