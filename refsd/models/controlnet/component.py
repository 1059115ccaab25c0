"""The component of ControlNet."""

from refsd.models.controlnet import controlnet
from refsd.models.unet.component import CONTEXT, HINT, TIMESTEPS, X, Y, kinds_fit, shared_fits
from refsd.networks.component import Component

COMPONENTS = {
    "controlnet": Component(
        "controlnet",
        lambda m, **arguments: {f"control.{i}": part for i, part in enumerate(controlnet(m, **arguments))},
        {
            "x": X,
            "hint": HINT._replace(optional=False),
            "timesteps": TIMESTEPS,
            "context": CONTEXT,
            "y": Y,
        },
        {"control.0": "N D H W", "control.1": "one for each skip, and last the middle"},
        {"num_heads": 8, "num_groups": 32, "strength": 1.0, "control_type": 0},
        lambda m: shared_fits(m) | {"control_type": kinds_fit(m)},
    ),
}
