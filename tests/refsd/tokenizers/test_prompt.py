import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsd.tokenizers.prompt import chunks, parse_attention


class OneIdAWord:
    source = "test"

    def encode(self, text):
        return [len(word) for word in text.split()]


@pytest.mark.parametrize(
    ("prompt", "parts"),
    [
        ("normal text", [("normal text", 1.0)]),
        ("an (important) word", [("an ", 1.0), ("important", 1.1), (" word", 1.0)]),
        ("(unbalanced", [("unbalanced", 1.1)]),
        (r"\(literal\] \\ \x", [("(literal] \\ x", 1.0)]),
        ("(unnecessary)(parens)", [("unnecessaryparens", 1.1)]),
        (
            "a (((house:1.3)) [on] a (hill:0.5), sun, (((sky))).",
            [
                ("a ", 1.0),
                ("house", 1.573),
                (" ", 1.1),
                ("on", 1.0),
                (" a ", 1.1),
                ("hill", 0.55),
                (", sun, ", 1.1),
                ("sky", 1.4641),
                (".", 1.1),
            ],
        ),
        ("un(happy:1)", [("unhappy", 1.0)]),
        ("(x: +.5 ) [[y", [("x", 0.5), (" ", 1.0), ("y", 1 / 1.21)]),
        ("a) b] c:2)", [("a) b] c:2)", 1.0)]),
        ("(x:1.2.3)", [("x:1.2.3)", 1.1)]),
        ("", []),
        ("()", []),
    ],
)
def test_attention(prompt, parts):
    found = parse_attention(prompt)
    assert [part[0] for part in found] == [text for text, _ in parts]
    np.testing.assert_allclose([part[1] for part in found], [weight for _, weight in parts], rtol=1e-6)


def test_break():
    assert parse_attention("a BREAK b BREAKfast") == [("a", 1.0), None, ("b BREAKfast", 1.0)]
    inside = parse_attention("(a BREAK b)")
    assert [part[0] for part in inside] == ["a", "BREAK", "b"] and abs(inside[1][1] + 1.1) < 1e-6


@given(st.text(alphabet="ab ()[]:\\.1B", max_size=40))
def test_any_prompt_has_parts(prompt):
    for part in parse_attention(prompt):
        assert part is None or (isinstance(part[0], str) and isinstance(part[1], float))


def test_an_empty_prompt_is_one_chunk():
    (chunk,) = chunks(OneIdAWord(), "")
    assert chunk.ids.tolist() == [49406] + [49407] * 76 and chunk.ids.dtype == np.int64
    assert (chunk.weights == 1).all()


@pytest.mark.parametrize(("words", "count"), [(1, 1), (75, 1), (76, 2), (150, 2), (151, 3)])
def test_chunks_of_75(words, count):
    made = chunks(OneIdAWord(), "x " * words)
    assert len(made) == count
    for i, chunk in enumerate(made):
        here = min(75, words - 75 * i)
        assert chunk.ids.tolist() == [49406] + [1] * here + [49407] * (76 - here)


def test_break_fills_the_chunk():
    first, second = chunks(OneIdAWord(), "a bb BREAK (ccc:1.5)")
    assert first.ids.tolist() == [49406, 1, 2] + [49407] * 74
    assert second.ids[:3].tolist() == [49406, 3, 49407]
    assert (first.weights == 1).all() and second.weights[:3].tolist() == [1, 1.5, 1]


def test_weights_stand_at_their_tokens():
    (chunk,) = chunks(OneIdAWord(), "a (b c:2) d")
    assert chunk.weights[:6].tolist() == [1, 1, 2, 2, 1, 1]
