"""Read what shapes do not reveal (heads, groups, activations) from config.json; by default as released models."""

from pathlib import Path
from typing import Any

from refsd.models.catalogue import NETWORKS
from refsd.networks.config import shown_value
from refsd.networks.dimensions import Shapes
from refsd.networks.network import Network
from refsd.numerics.errors import BadInput


def component_config(component: str, path: Path, shapes: Shapes, config: dict[str, Any] | None) -> dict[str, Any]:
    """Return the hyper-parameters that a component's network needs besides its weights.

    shapes: tensor name, as in the original -> shape
    config: the content of config.json at `path`, or None
    Raises BadInput for a malformed field, and for a value that refsd does not compute.
    """
    network, given = NETWORKS[component], config or {}
    for inner in network.nested:
        fields = {} if given.get(inner) is None else given[inner]
        if not isinstance(fields, dict):
            raise BadInput(f"{path}: {inner} is {shown_value(fields)}; a JSON object expected")
        there = inner in given
        given = fields if fields and inner == "text_config" else {**given, **fields}
        # Classes of transformers then take a default of their own, which is not the released models'.
        if inner == "rope_parameters" and there and "rope_type" in network.computed and "rope_theta" not in given:
            raise BadInput(f"{path}: {inner} lacks rope_theta")
    for field, values in network.computed.items():
        found = given.get(field, values[0])
        if not any(type(found) is not dict and found == value for value in values):
            computed = " or ".join(map(str, values))
            raise BadInput(f"{path}: {field} is {shown_value(found)}; refsd computes {computed} only")
    _check_revealed(network, path, shapes, given)
    return network.config(path, shapes, given)


# Fields of config.json that the weights reveal too: numbers of blocks, and sizes that no other field gives.
_REVEALED = (
    "num_layers",
    "num_single_layers",
    "approximator_layers",
    "n_layers",
    "n_refiner_layers",
    "num_refiner_layers",
    "num_layerwise_text_blocks",
    "num_refiner_text_blocks",
    "num_hidden_layers",
    "decoder_num_layers",
    "depth",
    "num_position_embeddings",
    "out_hidden_size",
    "text_embed_dim",
    "adaln_lora_dim",
    "source_dim",
    "target_dim",
    "model_dim",
    "target_vocab_size",
    "num_control_type",
    "num_trans_channel",
    "num_proj_channel",
    "control_in_dim",
    "add_control_noise_refiner",
)


def _check_revealed(network: Network, path: Path, shapes: Shapes, given: dict[str, Any]) -> None:
    """Raise BadInput if the weights are complete but have other sizes or numbers of blocks than config.json.

    Names alone do not reveal that a file lost all tensors of a block.
    """
    size = network.size(shapes)
    if network.folder is None or not network.shapes(size).keys() <= shapes.keys():
        return
    there = network.folder.config(size)
    # Beside axes_dims_rope it is held against their sum; a UNet's is a number of heads.
    widths = ("attention_head_dim",) if "head_dim" in size._fields and "axes_dims_rope" not in there else ()
    for field in (*_REVEALED, *widths):
        if field in there and given.get(field, there[field]) != there[field]:
            raise BadInput(f"{path}: {field} is {shown_value(given[field])}; the weights have {there[field]}")
