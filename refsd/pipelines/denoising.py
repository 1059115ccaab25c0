"""A denoiser under guidance, as a function of x and the timestep: a call for each condition."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from refsd.families.family import Condition
from refsd.pipelines.part import Part
from refsd.samplers.guidance import guide, guide_image

Listener = Callable[[str, np.ndarray], None]

CONDITIONS = "cond", "image", "uncond"


class CallCondition(NamedTuple):
    """
    text:  the prompt
    extra: [1, C, h, w], channels behind x in the network's input; None: there are none
    """

    text: Condition
    extra: np.ndarray | None = None


class Guided:
    """
    conditions:  "cond" and, as far as guidance asks for them, "uncond" (without the prompt) and "image" (without
                 the prompt, but with the picture to edit)
    constants:   further inputs of every call, by argument: guidance, hint, reference
    params:      of the component
    uncond:      the output for the last x without the prompt
    """

    def __init__(
        self,
        denoiser: Part,
        conditions: Mapping[str, CallCondition],
        cfg_scale: float,
        image_cfg_scale: float | None,
        constants: Mapping[str, np.ndarray],
        params: Mapping[str, Any],
        tell: Listener,
    ):
        self.denoiser, self.conditions, self.tell = denoiser, conditions, tell
        self.cfg_scale, self.image_cfg_scale = cfg_scale, image_cfg_scale
        self.constants, self.params = constants, params
        self.patch = denoiser.patch
        self.calls = 0
        self.uncond = np.empty(0)

    def __call__(self, x: np.ndarray, t: float) -> np.ndarray:
        call = f"calls.{self.calls}"
        timesteps = np.array([t])
        self.tell(f"{call}.x", x)
        self.tell(f"{call}.timesteps", timesteps)
        outputs = {}
        for which in CONDITIONS:
            if which in self.conditions:
                outputs[which] = self._run(which, x, timesteps)
                self.tell(f"{call}.{which}", outputs[which])
        self.calls += 1
        if "uncond" not in outputs:
            return outputs["cond"]
        self.uncond = outputs["uncond"]
        if self.image_cfg_scale is not None and "image" in outputs:
            cond, image, uncond = (outputs[which] for which in CONDITIONS)
            return guide_image(cond, image, uncond, self.cfg_scale, self.image_cfg_scale)
        return guide(outputs["cond"], outputs["uncond"], self.cfg_scale)

    def _run(self, which: str, x: np.ndarray, timesteps: np.ndarray) -> np.ndarray:
        text, extra = self.conditions[which]
        inputs = {
            "x": self._whole(x if extra is None else np.concatenate([x, extra.astype(x.dtype)], axis=1)),
            "timesteps": timesteps,
            "context": text.context,
            **({} if text.y is None else {"y": text.y}),
            **({} if text.mask is None else {"context_mask": text.mask}),
            **self.constants,
        }
        source = f"{self.denoiser.name} call {self.calls}"
        out = self.denoiser(inputs, source, **self.params)["out"]
        return out[:, :, : x.shape[2], : x.shape[3]].astype(x.dtype)

    def _whole(self, x: np.ndarray) -> np.ndarray:
        """x padded with zeros below and to the right to whole patches.

        Source: stable-diffusion.cpp common_dit.hpp, pad_to_patch_size, unpatchify_and_crop.
        """
        return np.pad(x, ((0, 0), (0, 0), (0, -x.shape[2] % self.patch), (0, -x.shape[3] % self.patch)))
