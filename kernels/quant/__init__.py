"""Block types: how GGUF packs weights into blocks, one file for each type, found by itself."""

import importlib
import pkgutil

from refsd.kernels.quant.block_type import BlockType


def _found() -> list[BlockType]:
    pages = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    return [type for page in pages for type in vars(page).values() if isinstance(type, BlockType)]


# In the order of their numbers.
BLOCK_TYPES: dict[str, BlockType] = {type.name: type for type in sorted(_found(), key=lambda type: type.ggml_id)}

__all__ = ["BLOCK_TYPES", "BlockType"]
