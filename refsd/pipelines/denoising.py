"""A denoiser under guidance, as a function of x and what it is told of the noise: a call for each condition."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from refsd.pipelines.conditioning import Conditioned
from refsd.pipelines.part import Part
from refsd.samplers.guidance import guide, guide_image

Listener = Callable[[str, np.ndarray], None]

CONDITIONS = "cond", "image", "uncond"


class Told(NamedTuple):
    """
    text:   what the prompt's encoders said
    behind: [1, C, h, w], behind x in the input; None: nothing stands there
    """

    text: Conditioned
    behind: np.ndarray | None = None


class Guided:
    """
    told:        "cond" and, as far as guidance asks for them, "uncond" (without the prompt) and "image" (without
                 the prompt, but with the picture to edit)
    constants:   what every call takes besides, by argument: guidance, hint, reference
    params:      of the component
    uncond:      what it said of the last x without the prompt
    """

    def __init__(
        self,
        denoiser: Part,
        told: Mapping[str, Told],
        cfg_scale: float,
        image_cfg_scale: float | None,
        constants: Mapping[str, np.ndarray],
        params: Mapping[str, Any],
        tell: Listener,
    ):
        self.denoiser, self.told, self.tell = denoiser, told, tell
        self.cfg_scale, self.image_cfg_scale = cfg_scale, image_cfg_scale
        self.constants, self.params = constants, params
        self.calls = 0
        self.uncond = np.empty(0)

    def __call__(self, x: np.ndarray, t: float) -> np.ndarray:
        call = f"calls.{self.calls}"
        timesteps = np.array([t])
        self.tell(f"{call}.x", x)
        self.tell(f"{call}.timesteps", timesteps)
        outputs = {}
        for which in CONDITIONS:
            if which in self.told:
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
        text, behind = self.told[which]
        inputs = {
            "x": x if behind is None else np.concatenate([x, behind.astype(x.dtype)], axis=1),
            "timesteps": timesteps,
            "context": text.context,
            **({} if text.y is None else {"y": text.y}),
            **({} if text.mask is None else {"context_mask": text.mask}),
            **self.constants,
        }
        source = f"{self.denoiser.name} call {self.calls}"
        return self.denoiser(inputs, source, **self.params)["out"].astype(x.dtype)
