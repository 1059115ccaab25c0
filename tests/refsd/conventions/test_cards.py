"""A page an engine: what a card does not know is missing from a table, and nothing is said twice."""

import importlib
import pkgutil

import pytest

from refsd import conventions
from refsd.conventions import CARDS, CONVENTIONS, ENGINES, MASKS, PROMPT_CARDS
from refsd.golden.pages import tables
from refsd.samplers.levels import DiscreteLevels, FlowLevels

ONE_PAGE = """
from refsd.conventions.card import EngineCard
from refsd.conventions.k_diffusion import SAMPLING

CARD = EngineCard("mine", SAMPLING._replace(engine="mine"))
"""


def test_a_page_is_a_card(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(ONE_PAGE)
    monkeypatch.setattr(conventions, "__path__", [*conventions.__path__, str(tmp_path)])
    found = {card.engine: card for card in tables(conventions.__name__, "CARD")}
    assert found.keys() == {*ENGINES, "mine"} and found["mine"].sampling.levels is DiscreteLevels


def test_every_page_but_those_of_the_subjects_is_an_engine():
    pages = {module.name for module in pkgutil.iter_modules(conventions.__path__)}
    engines = {name.replace("-", "_") for name in ENGINES}
    assert pages - engines == {"card", "sampling", "prompts", "pictures", "masks"}
    for name, card in ENGINES.items():
        assert importlib.import_module(f"refsd.conventions.{name.replace('-', '_')}").CARD is card


@pytest.mark.parametrize("engine", ENGINES)
def test_subjects_of_a_card_agree(engine):
    card = ENGINES[engine]
    assert {of.engine for of in (card, card.sampling, card.prompts) if of is not None} == {engine}
    assert all(of.source for of in (card.sampling, card.prompts, card.masks) if of is not None)
    if card.pictures is not None:
        assert card.prompts is not None
        assert card.pictures.name == engine and card.pictures.prompt is card.prompts
        assert card.pictures.find_embedding is card.prompts.find
        assert card.pictures.truncation is card.sampling.truncation
        assert card.pictures.flow_truncation is card.sampling.truncation_of(FlowLevels(1.0))
        assert card.pictures.first_noise is card.sampling.first
        assert card.pictures.levels is card.sampling.levels
        assert card.pictures.discarding == card.sampling.discarding
        assert card.pictures.latent_mask is (card.masks.pooled if card.masks else None)
        assert card.masks is None or card.pictures.masks_input == card.masks.before


def test_tables_leave_out_what_cards_do_not_know():
    assert CARDS.keys() == ENGINES.keys() == {"sdcpp", "comfyui", "a1111", "forge", "diffusers", "k-diffusion"}
    assert PROMPT_CARDS.keys() == {*ENGINES} - {"k-diffusion"}
    assert MASKS.keys() == {"sdcpp", "diffusers", "comfyui"} and CONVENTIONS.keys() == PROMPT_CARDS.keys()
