"""The components MMDiT and MMDiT-X of Stable Diffusion 3 and 3.5."""

from refsd.models.mmdit import mmdit
from refsd.module import Module
from refsd.networks.component import POSITION, VALUE, Argument, Component
from refsd.networks.fits import Fit, exactly, layers_below, multiple_of


def _fits(m: Module) -> dict[str, Fit]:
    _, C, patch, _ = m.shape("x_embedder.proj.weight")
    fits = {
        "C": exactly(C),
        "E": exactly(m.shape("context_embedder.weight")[1]),
        "P": exactly(m.shape("y_embedder.mlp.0.weight")[1]),
        "skip_layers": layers_below(m.count("joint_blocks")),
    }
    return fits | dict.fromkeys("HW", multiple_of(patch))


COMPONENTS = {
    "mmdit": Component(
        "mmdit",
        mmdit,
        {
            "x": Argument("N C H W", VALUE, "noisy latent"),
            "timesteps": Argument("N", POSITION, "1000 sigma, 0..1000"),
            "context": Argument("N J E", VALUE, "hidden states of CLIP-L and bigG side by side, then T5's"),
            "y": Argument("N P", VALUE, "pooled text of CLIP-L and bigG"),
        },
        {"out": "N C H W"},
        {"head_dim": 64, "skip_layers": []},
        _fits,
    ),
}
