"""Table of all networks. One module describes each: sizes, tensors, where files keep them, config.json.

Every module of this folder that defines NETWORKS is collected automatically. A component of a checkpoint has the
name of its network. Networks may share a module, as CLIP-L and bigG do.
"""

import importlib
import pkgutil

from refsd.networks.network import KINDS, Network


def _collect() -> dict[str, Network]:
    modules = pkgutil.iter_modules(__path__, f"{__name__}.")
    pages = [getattr(importlib.import_module(module.name), "NETWORKS", ()) for module in modules]
    found = {network.name: network for page in pages for network in page}

    def more_special(network: Network) -> int:
        return max((1 + more_special(found[other]) for other in network.before), default=0)

    return dict(
        sorted(found.items(), key=lambda item: (KINDS.index(item[1].kind), -more_special(item[1]), item[0]))
    )


# Ordered by kind; weights/detect.py searches a file's names for the networks in this order.
NETWORKS = _collect()

# Networks that predict noise or a velocity; a model has exactly one.
DENOISERS = tuple(network.name for network in NETWORKS.values() if network.kind == "denoiser")
