"""The component of FLUX.1 Redux."""

from refsd.models.redux import redux
from refsd.networks.component import VALUE, Argument, Component
from refsd.networks.fits import exactly

COMPONENTS = {
    "redux": Component(
        "redux",
        redux,
        {"x": Argument("N L D", VALUE, "SigLIP's last hidden states")},
        {"out": "N L E"},
        {},
        lambda m: {"D": exactly(m.shape("redux_up.weight")[1])},
    ),
}
