"""A fourteenth fresh set, of samplers, caches, masks, tiles and files: drawn before a look at the judge."""

import itertools

import numpy as np
from held_out import HeldOut
from injected_files import strength_of
from injected_steps import sampled
from injection import wrong_answer, wrong_parts

from refsd.caches.first_block import FirstBlockCache
from refsd.caches.magcache import MagCache
from refsd.samplers.noise import TorchCpu
from refsd.stages.caches import RULE as CACHES
from refsd.stages.control import RULE as CONTROL
from refsd.stages.noising import RULE as NOISING
from refsd.stages.tiles import RULE as TILES
from refsd.stages.weights import spread

# --- caches ------------------------------------------------------------------------------------------------------


class _OneMoreThanTwice(MagCache):
    """The steps in a row are counted by n += n + 1: 1, 3, 7 ..."""

    def reuse(self, call):
        _, _, steps = self.counts.get(call.condition, (1.0, 0.0, 0))
        y = super().reuse(call)
        if y is not None:
            ratio, error, _ = self.counts[call.condition]
            if 2 * steps + 1 > self.most:
                self.counts[call.condition] = 1.0, 0.0, 0
                return None
            self.counts[call.condition] = ratio, error, 2 * steps + 1
        return y


class _SharedByBranches(FirstBlockCache):
    """Calls with the prompt and without it have one state: each is compared with, and reuses, the other's."""

    def reuse(self, call):
        return super().reuse(call._replace(condition="cond"))

    def keep(self, call, end):
        super().keep(call._replace(condition="cond"), end)


# --- samplers ----------------------------------------------------------------------------------------------------


def _noise_to_the_end(model, x, sigmas, draws, case):
    """The step after the last has the last one's level, not 0: noise is added to the end, too."""
    beyond = np.random.default_rng(5).standard_normal(x.shape)
    for sigma, to in itertools.pairwise(sigmas):
        denoised = model(x, float(sigma))
        x = (denoised + (to if to > 0 else sigma) * next(draws, beyond)).astype(x.dtype)
    return x


# --- control, masks and tiles ------------------------------------------------------------------------------------


def _after_the_start(engine):
    right = CONTROL.acts(engine)
    return lambda i, steps, start, end: start < i / steps and right(i, steps, start, end)


def _last_tiles_alone(engine):
    """Of all tiles those of the last row and of the last column are decoded; the others are black."""
    right = TILES.tiled(engine)

    def tiled(run, z, p):
        at, (H, W) = [], z.shape[2:]

        def note(tile):
            at.append(divmod(int(tile[0, 0, 0, 0]), W))
            return np.zeros((*tile.shape[:2], *(p["up"] * n for n in tile.shape[2:])))

        right(note, np.arange(H * W, dtype=float).reshape(1, 1, H, W), p)
        last, calls = [max(axis) for axis in zip(*at, strict=True)], iter(at)

        def some(tile):
            y, (row, column) = run(tile), next(calls)
            return y if row == last[0] or column == last[1] else np.zeros_like(y)

        return right(some, z, p)

    return tiled


# --- noise and files ---------------------------------------------------------------------------------------------


class _OneByOne(TorchCpu):
    def randn(self, shape, dtype=np.float32):
        return np.array([self._one() for _ in range(int(np.prod(shape)))]).astype(dtype).reshape(shape)


def _one_by_one(params, seeds):
    """Sixteen and more numbers are drawn as fewer are: one by one, each two of one pair of doubles."""

    if params["rng"] != "cpu":
        return NOISING.streams(params, seeds)
    return [_OneByOne(seeds[0])] * len(seeds) if params["one_stream"] else [_OneByOne(seed) for seed in seeds]


def _blocks_as_rotations(case, values, y):
    """LyCORIS's free parameters are taken for the rotations themselves."""
    (blocks,) = (value for name, value in values.items() if name.endswith(".oft_blocks"))
    share, weight = strength_of(case.params), values["weight"]
    blocks = share * blocks + (1 - share) * np.eye(blocks.shape[-1])
    turned = np.einsum("knm,kni->kmi", blocks, weight.reshape(len(blocks), blocks.shape[-1], -1))
    gain = next((value for name, value in values.items() if name.endswith(".rescale")), 1.0)
    return {"merged": gain * turned.reshape(weight.shape)}


_TABLE = {
    "ft-cch-01": (
        "pipeline",
        "Zehong-Ma/ComfyUI-MagCache#17",
        wrong_parts(
            "caches/magcache",
            "reused|computed|step|answer|cond",
            r"in a row|steps.*(count|doubl|twice|\b3\b)|most|consecutive|count",
            kinds={**CACHES.kinds, "magcache": _OneMoreThanTwice},
        ),
    ),
    "ft-cch-02": (
        "pipeline",
        "vllm-project/vllm-omni#5287, in the first-block cache's case",
        wrong_parts(
            "caches/first-block",
            "reused|computed|step|answer|cond",
            "shared|one state|both (conditions|branches|calls)|branch|(other|another) (condition|call)|uncond.*cond"
            "|prompt",
            kinds={**CACHES.kinds, "first-block": _SharedByBranches},
        ),
    ),
    "ft-smp-01": (
        "sampler",
        "Comfy-Org/ComfyUI#16447",
        wrong_parts(
            "sigmas/qwen-image-*",
            "sigmas",
            r"0\.69|\bmu\b|shift|4096|tokens|any size|resolution",
            mu=lambda levels, tokens, steps: 0.69,
        ),
    ),
    "ft-smp-02": (
        "sampler",
        "huggingface/diffusers#5681",
        sampled(
            ("lcm/karras",),
            r"latent|last|\bx\b|step",
            "noise.*(last|end|final)|(last|end|final).*noise|last step",
            _noise_to_the_end,
        ),
    ),
    "ft-cn-01": (
        "pipeline",
        "TheDenk/cogvideox-controlnet#21",
        wrong_parts(
            "control/diffusers-*",
            "keep",
            "start|begin|first step|strict|step 0|one step (later|less|late)|open",
            acts=_after_the_start,
        ),
    ),
    "ft-msk-01": (
        "pipeline",
        "invoke-ai/InvokeAI#5985",
        wrong_parts(
            "masked_step/diffusers-*",
            "left",
            r"level|sigma\b|before the step|one step|too noisy|more noise",
            level=lambda sigma, sigma_next: sigma,
        ),
    ),
    "ft-vae-01": (
        "pipeline",
        "deepbeepmeep/Wan2GP#2301",
        wrong_parts(
            "tiles/*",
            "picture|tiles",
            "tiles?.*(black|zero|left out|missing|not (decoded|written)|last|empty|0)|only the last"
            "|last (row|column)",
            tiled=_last_tiles_alone,
        ),
    ),
    "ft-rng-01": (
        "pipeline",
        "apple/coreai-models#253",
        wrong_parts(
            "noising/*",
            "noise",
            r"\b16\b|sixteen|one by one|pairs?|53|double|float64|fewer",
            streams=_one_by_one,
        ),
    ),
    "ft-ldr-01": (
        "loader",
        "sgl-project/sglang#39637",
        wrong_parts(
            "weights/fp8-scaled-blocks*",
            "weight",
            "first.*(block|scale|column)|scale.*(first|column|along)|one scale|axis 1",
            scaled=lambda values, scale: values * spread(scale[:, :1], values.shape),
        ),
    ),
    "ft-lora-01": (
        "loader",
        "AUTOMATIC1111/stable-diffusion-webui#14973",
        wrong_answer(
            "adapter/oft-*",
            "merged",
            "Cayley|rotations? (itself|themselves)|taken (for|as)|as (it is|they are)|skew|orthogonal|blocks",
            _blocks_as_rotations,
        ),
    ),
}
FOURTEENTH_STEPS: dict[str, HeldOut] = {id: HeldOut(*row) for id, row in _TABLE.items()}
