"""How torch's original of a component is loaded and called, and how a call of it is read. No torch until then."""

import contextlib
import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from refsd.golden.engine import EngineFailure
from refsd.numerics.errors import BadInput

# Keys that may be missing because forward never uses them.
_UNREAD = ("num_batches_tracked",)


class Original(NamedTuple):
    """The original of a component, as the torch engine runs it.

    package:     package that must be installed
    folder:      the component's folder inside a diffusers folder; a name of its own if there is no such folder
    load:        diffusers folder (or file, depending on `layout`), dtype -> module
    run:         module, tensors, params -> outputs by name
    layout:      what `load` reads: "diffusers": a folder; "ldm": a file in the original layout
    rounds_time: True if timesteps and guidance are rounded to the dtype before they are embedded
    laid_out:    taps, inputs -> the taps that the reference has too, in its layout
    kind:        name of the module's class; "": several, or another package's
    read:        module, the arguments of a call of it -> Arguments; None: its calls are not read, or by READERS
    """

    package: str
    folder: str
    load: Callable[[Path, Any], Any]
    run: Callable[[Any, Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]
    layout: str = "diffusers"
    rounds_time: bool = False
    laid_out: Callable[[dict[str, Any], Mapping[str, Any]], dict[str, Any]] = lambda taps, x: taps
    kind: str = ""
    read: "Callable[[Any, Given], Arguments] | None" = None


def diffusers(folder: str, name: str, run, **more) -> Original:
    return Original("diffusers", folder, _loader("diffusers", folder, name), run, kind=name, **more)


def transformers(folder: str, names: str | tuple[str, ...], run, **more) -> Original:
    """names: of the class; of several config.json names the folder's, and calls of the first are read"""
    first = (names if isinstance(names, tuple) else (names,))[0]
    return Original("transformers", folder, _loader("transformers", folder, names), run, kind=first, **more)


def _loader(package: str, folder: str, names: str | tuple[str, ...]) -> Callable[[Path, Any], Any]:
    def load(path: Path, dtype):
        name = names
        if isinstance(name, tuple):
            (name,) = json.loads((path / folder / "config.json").read_text())["architectures"]
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


Given = Mapping[str, Any]


class Arguments(NamedTuple):
    """A component's arguments.

    inputs:  name -> torch tensor
    params:  the component's parameters
    outputs: what the module returned -> the component's outputs by name
    """

    inputs: dict[str, Any]
    params: dict[str, Any]
    outputs: Callable[[Any], dict[str, Any]]


class Reader(NamedTuple):
    """How calls of a module class are read.

    component: its name
    read:      module, the call's arguments -> Arguments
    first:     candidate names of the submodule whose call starts the component; "": the module itself
    last:      candidate names of the submodule whose call ends it
    """

    component: str
    read: Callable[[Any, Given], Arguments]
    first: tuple[str, ...] = ("",)
    last: tuple[str, ...] = ("",)


def refuse(given: Given, *names: str) -> None:
    """Raise BadInput if a call has one of these arguments."""
    for name in names:
        value = given.get(name)
        if value is not None and value is not False and not (isinstance(value, dict) and not value):
            raise BadInput(f"the call has {name}, which refsd does not compute")


def sample(y) -> Any:
    """Return the tensor of a diffusers model's output."""
    return y[0] if isinstance(y, tuple) else y.sample


def timesteps(given: Given, name: str, count: int):
    import torch

    return torch.as_tensor(given[name]).detach().double().cpu().reshape(-1).expand(count)


def per_mille(t, dtype):
    """Return the time that the module effectively uses: it multiplies by 1000 in its own dtype, which may round."""
    return (t.to(dtype) * 1000).double() / 1000
