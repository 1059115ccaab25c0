"""Collect what the folders of this package say about their networks. A new folder is found by itself.

A component of a checkpoint has the name of its network. Folders may describe several networks, as CLIP-L and bigG.
"""

import importlib
import importlib.util
import pkgutil
from types import ModuleType

from refsd import models
from refsd.networks.network import KINDS, Network


def pages(name: str) -> list[ModuleType]:
    """Import the page of this name ("network", "component", "cases", ...) of every folder; "": the folders."""
    folders = [f"{models.__name__}.{found.name}" for found in pkgutil.iter_modules(models.__path__) if found.ispkg]
    named = [page for folder in folders if importlib.util.find_spec(page := f"{folder}.{name}".rstrip("."))]
    return [importlib.import_module(page) for page in named]


def _networks() -> dict[str, Network]:
    found = {network.name: network for page in pages("network") for network in getattr(page, "NETWORKS", ())}

    def more_special(network: Network) -> int:
        return max((1 + more_special(found[other]) for other in network.before), default=0)

    return dict(
        sorted(found.items(), key=lambda item: (KINDS.index(item[1].kind), -more_special(item[1]), item[0]))
    )


# Ordered by kind; the names of a file are searched for the networks in this order.
NETWORKS = _networks()

# Networks that predict noise or a velocity; a model has exactly one.
DENOISERS = tuple(network.name for network in NETWORKS.values() if network.kind == "denoiser")

# Networks that a denoiser's file may hold besides, which prepare its context.
TEXT_CONDITIONERS = tuple(network.name for network in NETWORKS.values() if network.kind == "text conditioner")

_OLDER = "clip", "clip_g", "t5"
# Text encoders that are language models, and the autoencoders of full size.
LANGUAGE_MODELS = tuple(n.name for n in NETWORKS.values() if n.kind == "text encoder" and n.name not in _OLDER)
AUTOENCODERS = tuple(n.name for n in NETWORKS.values() if n.kind == "autoencoder" and n.name != "tae")
