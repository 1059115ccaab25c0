"""Every network that refsd knows, a page each: its sizes, its tensors, where files keep them, its config.json.

A page is a module of this folder that has NETWORKS; it is found by itself. A component of a checkpoint is called as
its network; two may share a page, as CLIP-L and bigG do.
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


# By kind; in this order a file's names are looked at.
NETWORKS = _collect()

# Networks that predict noise or a velocity: a model has one.
DENOISERS = tuple(network.name for network in NETWORKS.values() if network.kind == "denoiser")
