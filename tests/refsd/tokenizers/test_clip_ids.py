"""Ids of awkward prompts, by whatever vocabulary is installed."""

import json
from pathlib import Path

import pytest

from refsd.tokenizers import find_tokenizer

RECORDED = json.loads((Path(__file__).parents[2] / "fixtures" / "clip_ids.json").read_text())["cases"]


@pytest.fixture(scope="module")
def tokenizer():
    return find_tokenizer()


@pytest.mark.smoke
@pytest.mark.parametrize("case", RECORDED, ids=lambda case: ascii(case["text"][:30]))
def test_recorded_ids(tokenizer, case):
    assert tokenizer.encode(case["text"]) == case["ids"]
