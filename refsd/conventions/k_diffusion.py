"""k-diffusion: conventions of the samplers and wrappers that web UIs took over."""

from refsd.conventions.card import EngineCard
from refsd.conventions.sampling import Card, from_the_end, named, one_stream, times_sigma
from refsd.samplers.levels import DiscreteLevels
from refsd.samplers.noise import TorchAvx2
from refsd.samplers.schedules import timesteps

SAMPLING = Card(
    "k-diffusion",
    "torch's CPU generator",
    one_stream(TorchAvx2),
    DiscreteLevels,
    named("karras", "exponential", "polyexponential", "vp", discrete=timesteps.discrete),
    "discrete",
    times_sigma,
    from_the_end,
    source="k-diffusion external.py, sampling.py",
)

CARD = EngineCard("k-diffusion", SAMPLING)
