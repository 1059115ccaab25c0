"""A denoiser with its conditions: a network call for each, and guidance that makes one prediction of them."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from refsd.families.family import Condition, Guide
from refsd.models.controlnet.union import KINDS as CONTROL_TYPES
from refsd.pipelines.cached_network import CachedNetwork
from refsd.pipelines.initial_latent import InitialLatent
from refsd.pipelines.loaded_component import LoadedComponent
from refsd.pipelines.plan import Plan
from refsd.samplers.guidance import (
    adaptive_projected,
    guide,
    guide_image,
    rescale,
    sdcpp_norm_threshold,
    skip_layer,
)
from refsd.samplers.guidance_variants import hold_lengths

Listener = Callable[[str, np.ndarray], None]


class Conditioning(NamedTuple):
    """Conditions with and without the prompt, with a batch size of 1. uncond: None if the plan is not guided."""

    cond: Condition
    uncond: Condition | None

    def tensors(self) -> dict[str, np.ndarray]:
        """Return the existing tensors by name: cond, cond.y, cond.mask, uncond, ..."""
        arrays: dict[str, np.ndarray | None] = {}
        for which, text in self._asdict().items():
            if text is not None:
                arrays |= {which: text.context, f"{which}.y": text.y, f"{which}.mask": text.mask}
                arrays[f"{which}.ip_tokens"] = text.ip_tokens
        return {name: array for name, array in arrays.items() if array is not None}


class _CallCondition(NamedTuple):
    """Condition of one network call.

    text:  the encoded prompt
    extra: [1, C, h, w], channels after x in the network's input; None: there are none
    """

    text: Condition
    extra: np.ndarray | None


class GuidedNetwork:
    """A denoiser with guidance, as a function of x and the timestep; a network call per condition.

    conditions: "cond"; if the plan is guided also "uncond", without the prompt, and for two guidance scales
                "image", without the prompt but with the image to edit
    constants:  further inputs of every call, by argument: guidance, hint, reference
    sigma:      noise level of the call that comes next; it decides the step where guidance depends on that
    jumps:      True if the network also takes the time at which the step ends
    guide:      makes one prediction of those with and without the prompt, where the rule does not project
    uncond:     the last output without the prompt
    cached:     what answers calls in place of the network, or of its blocks; None: nothing does
    """

    def __init__(
        self,
        network: LoadedComponent,
        plan: Plan,
        conditioning: Conditioning,
        start: InitialLatent,
        tell: Listener,
        guide: Guide = guide,
    ):
        (cond, uncond), extra = conditioning, start.extra
        self.conditions = {"cond": _CallCondition(cond, extra and extra.cond)}
        if uncond is not None:
            if plan.image_cfg_scale not in (None, plan.cfg_scale):
                self.conditions["image"] = _CallCondition(uncond, extra and extra.cond)
            self.conditions["uncond"] = _CallCondition(uncond, extra and extra.uncond)
        guidance = {} if plan.guidance is None else {"guidance": np.array([plan.guidance])}
        self.constants: Mapping[str, np.ndarray] = {**start.constants, **guidance}
        self.params: dict[str, Any] = {}
        if "hint" in self.constants and "hint_context" in network.arguments:
            # Source: diffusers QwenImageControlNetPipeline: the call without the prompt has the other's hints.
            words = {"hint_context": cond.context, "hint_mask": cond.mask}
            self.constants = {**self.constants, **{name: x for name, x in words.items() if x is not None}}
        if "hint" in self.constants:
            self.params["control_strength"] = float(plan.control_strength)
            if plan.control_type is not None:
                self.params["control_type"] = CONTROL_TYPES.index(plan.control_type)
        if cond.ip_tokens is not None:
            self.params["ip_scale"] = float(plan.ip_scale)
        self.network, self.plan, self.patch, self.tell = network, plan, network.patch, tell
        self.jumps = "target_timesteps" in network.fits and network.fits["target_timesteps"].holds(1)
        self.guide = guide
        rule, steps = plan.guidance_rule, len(plan.sigmas) - 1
        shares = rule.skip_layer_start, rule.skip_layer_end
        self.skipping = plan.convention.skipping_steps(steps, *shares) if rule.skips else range(0)
        cache = plan.cache
        self.cached = None if cache is None else CachedNetwork(network, cache, plan.sigmas, plan.levels)
        self.calls, self.sigma, self.average = 0, float(plan.sigmas[0]), None
        self.uncond = np.empty(0)

    def __call__(self, x: np.ndarray, t: float) -> np.ndarray:
        call, rule = f"calls.{self.calls}", self.plan.guidance_rule
        step, timesteps = self._step(), np.array([t])
        if "control_strength" in self.params:
            self.params["control_strength"] = self._control_strength(step)
        skips = {"skip_layers": [*rule.skip_layers]} if step in self.skipping else {}
        self.tell(f"{call}.x", x)
        self.tell(f"{call}.timesteps", timesteps)
        outputs = {}
        for name, condition in self.conditions.items():
            without = skips if name == "uncond" and rule.slg_uncond else {}
            compute = partial(self._output, condition, x, timesteps, **without)
            outputs[name] = self.cached.output(name, self.calls, x, compute) if self.cached else compute()
            self.tell(f"{call}.{name}", outputs[name])
            if self.cached:
                self.tell(f"{call}.{name}.reused", np.array(self.cached.reused))
        if skips and rule.slg_scale:
            outputs["skipped"] = self._output(self.conditions["cond"], x, timesteps, **skips)
            self.tell(f"{call}.skipped", outputs["skipped"])
        self.calls += 1
        self.uncond = outputs.get("uncond", self.uncond)
        guided = self._guided(outputs, step)
        if rule.cfg_norm and "uncond" in outputs:
            guided = self._held(x, guided, outputs["cond"])
        if "skipped" in outputs:
            guided = skip_layer(guided, outputs["cond"], outputs["skipped"], rule.slg_scale)
        return guided

    def _step(self) -> int:
        """Return the last step that begins at the call's noise level or above."""
        levels = self.plan.sigmas[:-1]
        return max(int(np.searchsorted(-levels, -self.sigma, side="right")) - 1, 0)

    def _control_strength(self, step: int) -> float:
        """Return 0 in a step not wholly within the ControlNet's share. Source: diffusers, controlnet_keep."""
        plan, n = self.plan, len(self.plan.sigmas) - 1
        within = plan.control_start <= step / n and (step + 1) / n <= plan.control_end
        return float(plan.control_strength) if within else 0.0

    def _end_of_step(self) -> np.ndarray:
        return np.array([self.plan.levels.to_t(float(self.plan.sigmas[self._step() + 1]))])

    def _guided(self, outputs: Mapping[str, np.ndarray], step: int) -> np.ndarray:
        plan, rule, cond = self.plan, self.plan.guidance_rule, outputs["cond"]
        if "uncond" not in outputs:
            return cond
        uncond, scales = outputs["uncond"], rule.guidance_schedule
        scale = scales[step] if step < len(scales) else plan.cfg_scale
        if rule.projects:
            limit = sdcpp_norm_threshold(rule.apg_norm_threshold, cond.size)
            settings = rule.apg_eta, limit, rule.apg_momentum, self.average, rule.apg_norm_threshold_smoothing
            guided, self.average = adaptive_projected(cond, uncond, scale, *settings)
        elif plan.image_cfg_scale is not None and "image" in outputs:
            guided = guide_image(cond, outputs["image"], uncond, scale, plan.image_cfg_scale)
        else:
            guided = self.guide(cond, uncond, scale)
        return rescale(guided, cond, rule.guidance_rescale) if rule.guidance_rescale else guided

    def _held(self, x: np.ndarray, guided: np.ndarray, cond: np.ndarray) -> np.ndarray:
        """Hold the lengths of what is denoised; x: the network's input. -> the prediction"""
        c_skip, c_out, c_in = self.plan.output.scalings(self.sigma)
        start, strength = c_skip / c_in * x, self.plan.guidance_rule.cfg_norm
        return (hold_lengths(start + c_out * guided, start + c_out * cond, strength) - start) / c_out

    def _output(self, condition: _CallCondition, x: np.ndarray, timesteps: np.ndarray, **skips) -> np.ndarray:
        text, extra = condition
        inputs = {
            "x": self._whole_patches(x if extra is None else np.concatenate([x, extra.astype(x.dtype)], axis=1)),
            "timesteps": timesteps,
            **({"target_timesteps": self._end_of_step()} if self.jumps else {}),
            "context": text.context,
            **({} if text.y is None else {"y": text.y}),
            **({} if text.mask is None else {"context_mask": text.mask}),
            **({} if text.ip_tokens is None else {"ip_tokens": text.ip_tokens}),
            **self.constants,
        }
        params = self.params | ({"places": [*text.places]} if text.places else {})
        out = self.network(inputs, f"{self.network.name} call {self.calls}", **params, **skips)["out"]
        return out[..., : x.shape[-2], : x.shape[-1]].astype(x.dtype)

    def _whole_patches(self, x: np.ndarray) -> np.ndarray:
        """Pad x with zeros at the bottom and right to whole patches.

        Source: stable-diffusion.cpp common_dit.hpp, pad_to_patch_size, unpatchify_and_crop.
        """
        added = [(0, -side % self.patch) for side in x.shape[-2:]]
        return np.pad(x, [*[(0, 0)] * (x.ndim - 2), *added])
