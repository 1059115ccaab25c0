"""One step of inpainting a batch: the mask on latents, and when the given pictures are put back around it."""

from collections.abc import Callable
from typing import NamedTuple

import msgspec
import numpy as np

from refsd.conventions import MASKS
from refsd.conventions.masks import MaskCard, binary, largest_of_square, middle_of_square
from refsd.golden.recipe import Recipe
from refsd.stages.stage import REQUIRED, NoDifference, Output, Stage, StageInputs, case, part


def in_turn(y: np.ndarray, count: int) -> np.ndarray:
    """Repeat items in turn to fill the batch: a, b, a, b. Source: torch.Tensor.repeat in diffusers and ComfyUI."""
    return y[np.arange(count) % len(y)]


def _noised(latent: np.ndarray, noise: np.ndarray, sigma: float, space: str) -> np.ndarray:
    return (1 - sigma if space == "flow" else 1.0) * latent + sigma * noise


def _mixed(new: np.ndarray, given: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return new * mask + given * (1 - mask)


class MaskedRule(NamedTuple):
    """The parts of the rule.

    convention: engine -> its convention
    masks:      masks, N -> mask of each picture of the batch
    pictures:   given latents, N -> given latent of each picture of the batch
    noised:     latent, noise, sigma, space -> the latent noised to sigma
    level:      sigma, sigma_next -> sigma of the picture that is put back after the step
    mixed:      new latent, given latent, mask -> new where the mask is 1, given where it is 0
    """

    convention: Callable[[str], MaskCard] = lambda engine: MASKS[engine]
    masks: Callable[[np.ndarray, int], np.ndarray] = in_turn
    pictures: Callable[[np.ndarray, int], np.ndarray] = in_turn
    noised: Callable[[np.ndarray, np.ndarray, float, str], np.ndarray] = _noised
    level: Callable[[float, float], float] = lambda sigma, sigma_next: sigma_next
    mixed: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray] = _mixed


def _run(rule: MaskedRule, inputs: StageInputs) -> dict[str, np.ndarray]:
    t, p = inputs.tensors, inputs.params
    x, N, (sigma, sigma_next) = t["x"], len(t["x"]), (p["sigma"], p["sigma_next"])
    own = rule.convention(p["engine"])
    pixels = t["mask"].shape[2] // x.shape[2]
    mask = rule.masks(own.pooled(own.grey(t["mask"]), pixels), N)
    given = rule.pictures(t["latent"], N)
    shown, denoised = x, t["denoised"]
    if own.before:
        shown = rule.mixed(x, rule.noised(given, t["noise"], sigma, p["space"]), mask)
    if own.at_x0:
        denoised = rule.mixed(denoised, given, mask)
    left = x + (x - denoised) / sigma * (sigma_next - sigma)
    if own.after:
        level = rule.level(sigma, sigma_next)
        left = rule.mixed(left, rule.noised(given, t["noise"], level, p["space"]), mask)
    return {"latent_mask": mask, "shown": shown, "denoised": denoised, "left": left}


def _size(inputs: StageInputs, truth: np.ndarray) -> np.ndarray:
    """The terms on absolute values; x - denoised cancels, so its terms count in full."""
    t, p = inputs.tensors, inputs.params
    given = in_turn(np.abs(t["latent"]), len(truth)) + max(p["sigma"], 1.0) * np.abs(t["noise"])
    step = (np.abs(t["x"]) + np.abs(t["denoised"]) + given) * max(1.0, p["sigma_next"] / p["sigma"])
    return np.abs(truth) + given + 2 * step


# --- what engines got wrong --------------------------------------------------------------------------------------


def _with(**changes) -> Callable[[str], MaskCard]:
    """Change fields of the convention; the value of `pooled` maps the engine's own function to the wrong one."""

    def convention(engine: str) -> MaskCard:
        right = MASKS[engine]
        own = {k: v(getattr(right, k)) if k == "pooled" else v for k, v in changes.items()}
        if all(getattr(right, k) == v for k, v in own.items()):
            raise NoDifference
        return right._replace(**own)

    return convention


def _mean(mask: np.ndarray, pixels: int) -> np.ndarray:
    N, C, H, W = mask.shape
    return mask.reshape(N, C, H // pixels, pixels, W // pixels, pixels).mean(axis=(3, 5), dtype=mask.dtype)


def _in_rows(y: np.ndarray, count: int) -> np.ndarray:
    """Repeat each item in a row: a, a, b, b."""
    return np.repeat(y, -(-count // len(y)), axis=0)[:count]


def _first_picture(y: np.ndarray, count: int) -> np.ndarray:
    return in_turn(y[:1], count)


def _by_the_first(new: np.ndarray, given: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return _mixed(new, given, mask[:1])


def _only_the_first(right: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]):
    return lambda new, given, mask: np.concatenate([right(new[:1], given[:1], mask[:1]), new[1:]])


_KNOWN = (
    part("grey is not made black or white", convention=_with(grey=lambda mask: mask)),
    part("grey is made black or white at a half", convention=_with(grey=binary)),
    part("all but black is white", convention=_with(grey=lambda mask: (mask > 0).astype(mask.dtype))),
    part("all but white is black", convention=_with(grey=lambda mask: (mask == 1).astype(mask.dtype))),
    *(
        part(f"mask by its {name} pixel", convention=_with(pooled=lambda own, pool=pool: pool))
        for name, pool in (
            ("first", lambda m, n: m[:, :, ::n, ::n]),
            ("largest", largest_of_square),
            ("middle", lambda m, n: m[:, :, n // 2 :: n, n // 2 :: n]),
            ("smallest", lambda m, n: 1 - largest_of_square(1 - m, n)),
        )
    ),
    part("mask by its mean", convention=_with(pooled=lambda own: _mean)),
    part("mask by the mean of its middle", convention=_with(pooled=lambda own: middle_of_square)),
    part(
        "mask made black or white after it is made small",
        convention=_with(pooled=lambda own: lambda m, n: binary(own(m, n))),
    ),
    part("mask inverted", convention=_with(pooled=lambda own: lambda m, n: 1 - own(m, n))),
    part("each mask for its share of the batch in a row", masks=_in_rows),
    part("the first mask for all", masks=lambda y, n: in_turn(y[:1], n)),
    part("masks of all pictures together", masks=lambda y, n: in_turn(y.max(axis=0, keepdims=True), n)),
    part("each picture for its share of the batch in a row", pictures=_in_rows),
    part("the first picture for all", pictures=_first_picture),
    part("mixed by the first mask", mixed=_by_the_first),
    part("mixed with the first picture by the first mask", pictures=_first_picture, mixed=_by_the_first),
    part("only the first of the batch is masked", mixed=_only_the_first(_mixed)),
    part("nothing put back in the step, but at the end or never", mixed=lambda new, given, mask: new),
    part("all kept", mixed=lambda new, given, mask: given + 0 * new),
    part("what is given is added whole", mixed=lambda new, given, mask: new * mask + given),
    part("what is new is added whole", mixed=lambda new, given, mask: new + given * (1 - mask)),
    part("mask squared", mixed=lambda new, given, mask: _mixed(new, given, mask * mask)),
    part("mask's root", mixed=lambda new, given, mask: _mixed(new, given, np.sqrt(mask))),
    part("what is given is multiplied by the mask first", mixed=lambda n, g, m: _mixed(n, g * (1 - m), m)),
    part("x is shown without the picture around the mask", convention=_with(before=False)),
    part("the picture is shown around the mask before the step", convention=_with(before=True)),
    part("the picture is not kept in what the network answers", convention=_with(at_x0=False)),
    part("the picture is kept in what the network answers", convention=_with(at_x0=True)),
    part("the picture is put back after the step", convention=_with(after=True)),
    part("put back at the step's own level", level=lambda sigma, sigma_next: sigma),
    part("put back without noise", level=lambda sigma, sigma_next: 0.0),
    part("put back as of a flow", noised=lambda z, n, sigma, space: _noised(z, n, sigma, "flow")),
    part("put back as of a variance-exploding model", noised=lambda z, n, s, space: _noised(z, n, s, "ve")),
    part("noise of the variance", noised=lambda z, n, sigma, space: _noised(z, n, sigma**2, space)),
    part("one noise for the batch", noised=lambda z, n, s, space: _noised(z, in_turn(n[:1], len(n)), s, space)),
)

_IMAGE = ("item", "channel", "row", "column")
_H, _W, _PIXELS = 24, 40, 4


# Grey masks: pixels of 0, 1/8 ... 1; or 0, 1/64 ... 1/2, where less than half of the squares have a pixel of 1/2.
_GREY, _DARK = (
    Recipe((1, 1, _H, _W), data="token_ids", exponent=exponent, n=n) for exponent, n in ((-3, 9), (-6, 33))
)


def _case(label: str, engine: str, masks: int, batch: int, space: str = "ve", sigmas=(4.3, 2.9), pictures=None):
    small = (_H // _PIXELS, _W // _PIXELS)
    batched = Recipe((batch, 3, *small))
    inputs = {
        "mask": msgspec.structs.replace(_DARK if engine == "sdcpp" else _GREY, shape=(masks, 1, _H, _W)),
        "latent": Recipe((pictures or masks, 3, *small), offset=0.25),
        "noise": batched,
        "x": Recipe((batch, 3, *small), exponent=-14, offset=-0.5),
        "denoised": Recipe((batch, 3, *small), offset=0.125),
    }
    return case("masked_step", label, inputs, engine=engine, space=space, sigma=sigmas[0], sigma_next=sigmas[1])


STAGES = (
    Stage(
        "masked_step",
        "One of Euler's steps of a batch with grey masks: what the network is shown, answers, and what is left. "
        "Masks and pictures that are fewer than the batch are taken in turn.",
        inputs={
            "mask": "[M, 1, P H, P W]: 0..1; something new is drawn at 1",
            "latent": "[M or 1, C, H, W]: of the given pictures",
            "noise": "[N, C, H, W]: that of the batch's start",
            "x": "[N, C, H, W]: before the step",
            "denoised": "[N, C, H, W]: what the network answers",
        },
        params={"engine": REQUIRED, "space": "ve", "sigma": REQUIRED, "sigma_next": REQUIRED},
        outputs={
            "latent_mask": Output(_IMAGE, lambda inputs, truth: np.ones(truth.shape), 6),
            "shown": Output(_IMAGE, _size, 16),
            "denoised": Output(_IMAGE, _size, 16),
            "left": Output(_IMAGE, _size, 32),
        },
        rule=MaskedRule(),
        choices={"engine": MASKS, "space": ("ve", "flow")},
        run=_run,
        known=_KNOWN,
        cases=(
            _case("diffusers-batch", "diffusers", 2, 4),
            _case("diffusers-one-mask", "diffusers", 1, 2),
            _case("diffusers-flow", "diffusers", 2, 2, "flow", (0.8, 0.55)),
            _case("comfyui-batch", "comfyui", 2, 4),
            _case("comfyui-odd-batch", "comfyui", 2, 3, pictures=1),
            _case("comfyui-flow", "comfyui", 3, 3, "flow", (0.7, 0.4)),
            _case("sdcpp-batch", "sdcpp", 2, 2),
            _case("sdcpp-flow", "sdcpp", 1, 1, "flow", (0.9, 0.6)),
        ),
    ),
)
