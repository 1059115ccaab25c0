"""Types that describe a component: arguments, outputs, and what its weights ask of them (fits.py)."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from refsd.module import Module
from refsd.networks.dimensions import Shape
from refsd.networks.fits import Fit

VALUE = "float, rounded to the storage dtype"
POSITION = "float, never rounded"
IDS = "integer"
MASK = "0 or 1"


class Argument(NamedTuple):
    """An input tensor of a component.

    shape:    one letter per axis: "N C H W". A letter has the same size in all tensors of a call. "J+L" is a sum,
              "8H" a multiple, "3" a fixed size
    kind:     VALUE, POSITION, IDS or MASK
    what:     description in a few words, with the range
    optional: True if it may be left out, unless the component's `fits` declares it `needed`
    fixed:    True if a graph of the component holds for this content only, as for a mask's
    """

    shape: str
    kind: str
    what: str
    optional: bool = False
    fixed: bool = False


# (shapes of a component's weights, of those of one beside it, the latter's file) -> name that the first reads ->
# name of the other's tensor. Raises BadInput for weights that do not fit each other.
Joined = Callable[[Mapping[str, Shape], Mapping[str, Shape], object], Mapping[str, str]]


class Stack(NamedTuple):
    """The main blocks of a denoiser, in order, for caches that skip them.

    lists:     names of the lists of blocks
    picture:   which of the two states of a block in the first list is the picture's; None: all tokens are in one
    modulated: tap, in the first block, of the picture's tokens as its attention takes them; "": there is none
    """

    lists: tuple[str, ...]
    picture: int | None = None
    modulated: str = ""


class Component(NamedTuple):
    """A network, or a part of one, that refsd can run and judge engines by.

    part:      component of a checkpoint that holds the weights; None: a case brings them
    run:       (Module, arguments and params by name) -> arrays for `outputs`, then for `also`; or name -> array
    arguments: name -> Argument
    outputs:   name -> shape; engines are judged by these
    params:    name -> default; a list for a list of whole numbers from 0
    fits:      Module -> (letter, param or optional argument -> Fit), from the weights' shapes; "V" bounds token ids
    also:      name -> shape of further outputs of `refsd forward`
    beside:    other components of the checkpoint whose weights are added, each with the function that names them
    stack:     its main blocks, where caches may skip them
    """

    part: str | None
    run: Callable[..., Any]
    arguments: Mapping[str, Argument]
    outputs: Mapping[str, str]
    params: Mapping[str, Any]
    fits: Callable[[Module], Mapping[str, Fit]]
    also: Mapping[str, str] = {}
    beside: Mapping[str, Joined] = {}
    stack: Stack | None = None
