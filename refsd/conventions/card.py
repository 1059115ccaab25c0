"""The card of an engine: all its conventions that refsd knows."""

from typing import Any, NamedTuple

from refsd.conventions.masks import MaskCard
from refsd.conventions.pictures import Convention
from refsd.conventions.prompts import PromptCard
from refsd.conventions.sampling import Card
from refsd.samplers.levels import FlowLevels


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


def cards(sampling: Card, prompts: PromptCard, masks: MaskCard | None = None) -> dict[str, Any]:
    """Return the fields of a Convention that an engine's other cards say. Without `masks` it cannot inpaint."""
    return {
        "prompt": prompts,
        "find_embedding": prompts.find,
        "discarding": sampling.discarding,
        "levels": sampling.levels,
        "truncation": sampling.truncation,
        "flow_truncation": sampling.truncation_of(FlowLevels(1.0)),
        "first_noise": sampling.first,
        "flow_schedules": sampling.of_flows,
        "latent_mask": masks and masks.pooled,
        "masks_input": masks is not None and masks.before,
    }
