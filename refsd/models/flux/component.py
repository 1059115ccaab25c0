"""The components of FLUX.1, and of its single and double blocks."""

from collections.abc import Callable

from refsd.models.flux import AXES_DIM, double_stream_block, flux, single_stream_block
from refsd.models.flux.network import QUERY_NORMS
from refsd.module import Module
from refsd.networks.component import POSITION, VALUE, Argument, Component, Stack
from refsd.networks.fits import Fit, exactly, layers_below, multiple_of, needed, refused, rotary_axes
from refsd.numerics.errors import BadInput

X = Argument("N C H W", VALUE, "noisy latent, unpacked; Fill, Canny and Depth: the condition behind it")
TIMESTEPS = Argument("N", POSITION, "0..1, the share of the noise")
CONTEXT = Argument("N J E", VALUE, "T5's hidden states")


def _fits(m: Module) -> dict[str, Fit]:
    fits = latent_fits(m) | {"V": exactly(m.shape("vector_in.in_layer.weight")[1])}
    fits["skip_layers"] = layers_below(m.count("double_blocks") + m.count("single_blocks"))
    if fits["C"].n != fits["K"].n:
        fits["reference"] = refused("these weights take a picture's latent behind x, as Fill, Canny and Depth")
    if "guidance_in" in m:
        return fits | {"guidance": needed("the weights embed one; 3.5 is usual")}
    return fits | {"guidance": refused("the weights do not embed it, as schnell's")}


def latent_fits(m: Module) -> dict[str, Fit]:
    """Constrain latent sizes: a token is a 2x2 square, and positions use all channels of a head."""
    for name, axis in (("img_in.weight", 1), ("final_layer.linear.weight", 0)):
        if m.shape(name)[axis] % 4:
            raise BadInput(f'"{name}" has the shape {list(m.shape(name))}: tokens of 4 pixels are expected')
    fits = {"C": exactly(m.shape("img_in.weight")[1] // 4), "E": exactly(m.shape("txt_in.weight")[1])}
    fits["axes_dim"] = rotary_axes(m, "txt_in.weight", QUERY_NORMS)
    fits["K"] = exactly(m.shape("final_layer.linear.weight")[0] // 4)
    return fits | dict.fromkeys("HWhw", multiple_of(2))


def _block_fits(qkv: str, scale: str) -> Callable[[Module], dict[str, Fit]]:
    def fits(m: Module) -> dict[str, Fit]:
        D, head_dim = m.shape(f"{qkv}.weight")[1], m.shape(scale)[0]
        return {"D": exactly(D), "P": exactly(head_dim // 2), "num_heads": exactly(D // head_dim)}

    return fits


COMPONENTS = {
    "flux": Component(
        "flux",
        flux,
        {
            "x": X,
            "timesteps": TIMESTEPS,
            "context": CONTEXT,
            "y": Argument("N V", VALUE, "CLIP-L's pooled text"),
            "guidance": Argument("N", POSITION, "distilled guidance, 3.5 or so", optional=True),
            "reference": Argument("N K h w", VALUE, "Kontext: the latent of the picture to edit", optional=True),
        },
        {"out": "N K H W"},
        {"skip_layers": [], "axes_dim": [*AXES_DIM]},
        _fits,
        stack=Stack(("double_blocks", "single_blocks"), picture=0, modulated="modulate"),
    ),
    "flux-double": Component(
        None,
        double_stream_block,
        {
            "img": Argument("N L D", VALUE, "picture tokens"),
            "txt": Argument("N J D", VALUE, "text tokens"),
            "vec": Argument("N D", VALUE, "conditioning"),
            "angle": Argument("N J+L P", POSITION, "RoPE angle of each pair of channels, radians; text first"),
        },
        {"img": "N L D", "txt": "N J D"},
        {"num_heads": 24},
        _block_fits("img_attn.qkv", "img_attn.norm.query_norm.scale"),
    ),
    "flux-single": Component(
        None,
        single_stream_block,
        {
            "x": Argument("N L D", VALUE, "text and picture tokens"),
            "vec": Argument("N D", VALUE, "conditioning"),
            "angle": Argument("N L P", POSITION, "RoPE angle of each pair of channels, radians"),
        },
        {"out": "N L D"},
        {"num_heads": 24},
        _block_fits("linear1", "norm.query_norm.scale"),
    ),
}
