"""Declare a component for the torch engine, and load it from a diffusers folder."""

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from refsd.golden.engine import EngineFailure

# Keys that may be missing because forward never uses them.
_UNREAD = ("num_batches_tracked",)


class TorchModel(NamedTuple):
    """A component, as the torch engine runs it.

    package:     package that must be installed
    folder:      the component's folder inside a diffusers folder; a name of its own if there is no such folder
    load:        diffusers folder (or file, depending on `layout`), dtype -> module
    run:         module, tensors, params -> outputs by name
    layout:      what `load` reads: "diffusers": a folder; "ldm": a file in the original layout
    rounds_time: True if timesteps and guidance are rounded to the dtype before they are embedded
    laid_out:    taps, inputs -> the taps that the reference has too, in its layout
    """

    package: str
    folder: str
    load: Callable[[Path, Any], Any]
    run: Callable[[Any, Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]
    layout: str = "diffusers"
    rounds_time: bool = False
    laid_out: Callable[[dict[str, Any], Mapping[str, Any]], dict[str, Any]] = lambda taps, x: taps


def diffusers(folder: str, name: str, run, **more) -> TorchModel:
    return TorchModel("diffusers", folder, _loader("diffusers", folder, name), run, **more)


def transformers(folder: str, name: str, run, **more) -> TorchModel:
    return TorchModel("transformers", folder, _loader("transformers", folder, name), run, **more)


def _loader(package: str, folder: str, name: str) -> Callable[[Path, Any], Any]:
    def load(path: Path, dtype):
        kind = getattr(importlib.import_module(package), name)
        wanted = {"torch_dtype" if package == "diffusers" else "dtype": dtype}
        with _silent(package):
            model, info = kind.from_pretrained(
                path / folder, local_files_only=True, output_loading_info=True, **wanted
            )
        for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            keys = [str(key) for key in info.get(what, ()) if not str(key).endswith(_UNREAD)]
            if keys:
                raise EngineFailure(f"{name}: {len(keys)} {what.replace('_', ' ')}, first {min(keys)}")
        return model

    return load


@contextlib.contextmanager
def _silent(package: str) -> Iterator[None]:
    """Suppress the package's messages on missing keys and odd configs: the loader checks these itself."""
    logging = importlib.import_module(f"{package}.utils.logging")
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        logging.enable_progress_bar()
