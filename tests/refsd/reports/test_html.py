"""The page: whole in itself, harmless whatever engines say, bounded, and told in the right order."""

import re

import numpy as np
import pytest
from html_pages import HOSTILE, Page
from sample_reports import EPS, NEAR, fails, report, result

from refsd.golden import verdict
from refsd.golden.metrics import measure
from refsd.golden.report import RIGHT, UNSEEN, WRONG, Baseline, Missing, Step
from refsd.reports.html import html
from refsd.reports.html.model_map import model_map
from refsd.reports.pictures import draw

WAY = [
    Step("embed", RIGHT, 0.1),
    Step("layers.0.norm", WRONG, 12.0),
    Step("layers.0.mlp", RIGHT, 0.2),
    Step("layers.1.norm", WRONG, 3.0),
    Step("layers.1.mlp", UNSEEN, 0.0),
]


def _sample(**fields):
    y = np.arange(12.0).reshape(3, 4)
    outputs = [measure("y", y + 1, y, y + 1e-6, None, -1)]
    wrong = {"op": "model/clip", "way": WAY, "place": "layers.0.norm", "outputs": outputs}
    model = fails("tiny/clip/a", EPS, kept="failing/a b", **wrong)
    odd = fails("gelu/1", nearest=NEAR, looks=("y = 2 truth",))
    return report(result("silu/1"), model, odd, result("conv2d/1", verdict.REFUSED, reason="no conv"), **fields)


@pytest.mark.smoke
def test_the_page_needs_no_other_file():
    picture = draw("y", np.ones((2, 3)), np.zeros((2, 3)), np.zeros((2, 3)), False)
    text = html(_sample(), {("ggml", "tiny/clip/a"): picture})
    page = Page(text)
    assert not page.of("link") and not page.of("iframe") and len(page.of("script")) == 1
    assert [image["src"][:22] for image in page.of("img")] == ["data:image/png;base64,"]
    outside = [a["href"] for a in page.of("a") if not a["href"].startswith("#")]
    assert outside == ["failing/a%20b"]
    assert "http:" not in text and "https:" not in text and "url(" not in text and "@import" not in text
    policy = next(meta["content"] for meta in page.of("meta") if "http-equiv" in meta)
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    assert not any("style" in attributes or "onclick" in attributes for _, attributes in page.tags)


def test_the_verdict_comes_first_then_the_causes():
    words = Page(html(_sample(), {})).words
    told = [
        "Does not conform: 3 answers of 1 engine, 2 not",
        f"ggml, 1 of 2 failing cases: {EPS}",
        "gelu: unexplained",
    ]
    told += ["first wrong place", "explains 83 % of the error", "does not take 1 case: no conv"]
    assert [words.find(text) for text in told] == sorted(words.find(text) for text in told) and told[0] in words
    assert all(text in words for text in told)
    assert "Conforms: 1 answer of 1 engine, 0 not conforming" in Page(html(report(result("silu/1")), {})).words


def test_every_link_leads_somewhere_and_every_input_has_a_label():
    page = Page(html(_sample(), {}))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len({*ids})
    assert {a["href"][1:] for a in page.of("a") if a["href"].startswith("#")} <= {*ids}
    assert len(page.of("label")) == len(page.of("input")) == 2
    assert all(svg["aria-label"] for svg in page.of("svg")) and page.of("html")[0]["lang"] == "en"


def test_the_map_lights_the_first_wrong_place():
    spans = [(span.get("class"), span.get("aria-label") or "") for span in model_map(WAY).iter("span")]
    taps = [(kind, label) for kind, label in spans if label]
    assert [kind for kind, _ in taps] == ["tap right", "tap first", "tap after", "tap wrong", "tap unseen"]
    assert taps[1][1] == "layers.0.norm: the first wrong place, margin 12"
    assert "may inherit its error" in taps[2][1] and "margin 0.20" in taps[2][1]
    blocks = [span.text for span in model_map(WAY).iter("span") if span.get("class") == "block"]
    assert blocks == ["outside the blocks", "layers.0", "layers.1"]


def test_a_long_way_is_shown_around_its_first_wrong_place():
    way = [Step(f"layers.{i}.mlp", WRONG if i == 900 else RIGHT, 0.1) for i in range(2000)]
    spans = [span for span in model_map(way).iter("span") if span.get("aria-label")]
    assert len(spans) == 400 and any("layers.900.mlp: the first" in span.get("aria-label") for span in spans)
    assert "1600 taps are left out" in "".join(model_map(way).itertext())


def test_whatever_engines_say_is_text():
    step = [Step(HOSTILE, WRONG, 2.0), Step("x", RIGHT, 0.0)]
    fields = {"reason": HOSTILE, "op": HOSTILE, "place": HOSTILE, "looks": (HOSTILE,), "way": step, "kept": HOSTILE}
    bad = fails(HOSTILE, HOSTILE, engine=HOSTILE, **fields)
    odd = report(bad, result("a", verdict.REFUSED, reason=HOSTILE), shared=[HOSTILE], notes=[HOSTILE])
    odd.engines = {HOSTILE: HOSTILE, "ggml": HOSTILE}
    odd.missing = [Missing(HOSTILE, HOSTILE)]
    odd.baseline = Baseline(HOSTILE, fixed=[(HOSTILE, HOSTILE)])
    text = html(odd, {(HOSTILE, HOSTILE): draw(HOSTILE, np.ones(3), np.zeros(3), np.zeros(3), False)})
    page = Page(text)
    assert len(page.of("script")) == 1 and not page.of("b")
    assert {image.get("onerror") for image in page.of("img")} == {None}
    assert all(line.isprintable() for line in text.split("\n"))
    assert text.encode() and all(not a["href"].startswith("javascript") for a in page.of("a"))


def test_the_page_is_bounded_and_says_what_it_leaves_out():
    """Everything fails, with as much to say as there is room for."""
    way = [Step(f"layers.{i}." + "x" * 90, WRONG, 2.0) for i in range(300)]
    said = {"looks": ("<" * 200,), "way": way}
    results = [fails(f"conv2d/{i}-{'y' * 60}", reason="&" * 2000, engine=f"e{i % 7}", **said) for i in range(1000)]
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((1, 3, 200, 200))
    picture = draw("y", noise, rng.standard_normal(noise.shape), noise, True)
    text = html(report(*results), {(r.engine, r.case): picture for r in results})
    assert len(text.encode()) < 2_000_000
    assert "answers have no room in this page; see conform.json" in text
    assert "have no room in this page" in text and "data:image/png" in text


def test_pictures_are_bounded_and_the_first_of_each_cause_has_its_own():
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((1, 3, 200, 200))
    picture = draw("y", noise, rng.standard_normal(noise.shape), noise, True)
    results = [fails(f"a/{i}", EPS) for i in range(60)] + [fails("b/1", "scale is missing")]
    text = html(report(*results), {(r.engine, r.case): picture for r in results})
    assert len(text) < 1_000_000 and re.search(r"the pictures of \d+ answers have no room in this page", text)
    last = text[text.index("\u00b7 b/1") :]
    assert "data:image/png" in last[: last.index("</details>")]


def test_a_large_corpus_that_passes_is_bounded():
    names = [f"op{i % 60}/f32/{i}-n2-c33-k64-h17-w20" for i in range(3000)]
    passing = [result(name, engine=f"engine{e}") for e in range(8) for name in names]
    text = html(report(*passing), {})
    assert len(text) < 1_000_000 and "op59" in text


def test_a_large_corpus_with_a_few_failures_shows_these_alone():
    """Of an operation that has failures the cases beyond the room are counted, not listed."""
    results = [result(f"silu/{i:05}", verdict.FAIL if i % 100 == 0 else verdict.PASS) for i in range(40_000)]
    text = html(report(*results), {})
    words = Page(text).words
    assert len(text) < 1_000_000 and "silu/00100" in words and "silu/00001" not in words
    assert "and 39800 other cases, in conform.json" in words
