"""The card of an engine: all its conventions that refsd knows."""

from typing import NamedTuple

from refsd.conventions.masks import MaskCard
from refsd.conventions.pictures import Convention
from refsd.conventions.prompts import PromptCard
from refsd.conventions.sampling import Card


class EngineCard(NamedTuple):
    """The conventions of one engine; None for what refsd does not know of it.

    engine:   its name: a value of `refsd sigmas --like`
    sampling: noise, levels, schedules, truncation
    prompts:  weights, chunks, clip skip, learned embeddings
    pictures: what else decides a picture; an engine that has it is a value of `refsd txt2img --like`
    masks:    inpainting
    """

    engine: str
    sampling: Card
    prompts: PromptCard | None = None
    pictures: Convention | None = None
    masks: MaskCard | None = None
