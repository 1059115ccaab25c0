"""Conventions of engines, so that engines can be compared: one page an engine, and its card says all of them.

Every module of this folder that defines CARD is collected automatically; the tables below follow from the cards.
"""

from refsd.conventions.card import EngineCard
from refsd.golden.pages import tables

_DEFAULT = "sdcpp"
# By name, the default first.
ENGINES: dict[str, EngineCard] = {
    card.engine: card
    for card in sorted(tables(__name__, "CARD"), key=lambda card: (card.engine != _DEFAULT, card.engine))
}

# engine -> what its card says of one subject; engines of which refsd does not know it are left out
CARDS = {name: card.sampling for name, card in ENGINES.items()}
PROMPT_CARDS = {name: card.prompts for name, card in ENGINES.items() if card.prompts is not None}
CONVENTIONS = {name: card.pictures for name, card in ENGINES.items() if card.pictures is not None}
# Those whose rules refsd knows for every model.
OF_ALL_MODELS = {name: convention for name, convention in CONVENTIONS.items() if convention.draws is None}
MASKS = {name: card.masks for name, card in ENGINES.items() if card.masks is not None}
# The convention of `refsd txt2img` if the user names none.
DEFAULT = CONVENTIONS[_DEFAULT]
