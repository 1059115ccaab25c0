"""Operators of ONNX, a page for each kind: importing this folder registers them all."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_module.name)
