"""Ids as transformers gave them, from every file that carries a vocabulary; damaged files; the families' rules."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from tiny_tokenizers import SPECIAL, bytes_gguf, llama_gguf, llama_pieces, spiece, unigram_gguf, write_gguf
from typer.testing import CliRunner

from refsd.cli import app
from refsd.commands.tokenize import DEFAULT_FAMILY
from refsd.families import FAMILIES, VARIANTS
from refsd.families.flux2 import NOT_THINKING
from refsd.families.text_encoders import USER
from refsd.files.formats import open_weights
from refsd.files.gguf_arrays import numbers, texts
from refsd.numerics.errors import BadInput
from refsd.tokenizers.byte_level import TEKKEN, byte_level
from refsd.tokenizers.text_rules import counted_positions, places_with_padding_at_1, token_rows
from refsd.tokenizers.text_tokenizer import Ends
from refsd.tokenizers.tokenizer_files import open_tokenizer

RECORDED = json.loads((Path(__file__).parents[2] / "fixtures" / "tokenizers.json").read_text())
TOKENS, MERGES, _ = RECORDED["bytes"]
UNIGRAM = [(token, score) for token, score in RECORDED["unigram"]]
TYPES = [2 if t == "<unk>" else 3 if t in ("<pad>", "</s>") else 4 if "extra_id" in t else 1 for t, _ in UNIGRAM]


def qwen3_folder(folder):
    """vocab.json without the special tokens, which tokenizer_config.json has, as Qwen's."""
    folder.mkdir()
    ids = {token: i for i, token in enumerate(TOKENS)}
    (folder / "vocab.json").write_text(json.dumps({t: i for t, i in ids.items() if t not in SPECIAL}))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(MERGES) + "\n")
    added = {str(ids[token]): {"content": token, "special": True} for token in SPECIAL}
    config = {"added_tokens_decoder": added, "pad_token": "<|endoftext|>", "padding_side": "left"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def whole(path, gguf, component):
    """The same tokenizer as one tokenizer.json."""
    path.write_text(open_tokenizer(gguf, component)._tokenizer.to_str())
    return path


def files(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    qwen3_folder(model / "tokenizer")
    (model / "tokenizer_2").mkdir()
    (model / "tokenizer_2" / "spiece.model").write_bytes(spiece(UNIGRAM, TYPES))
    a, b = bytes_gguf(tmp_path / "b.gguf", TOKENS, MERGES, SPECIAL), unigram_gguf(tmp_path / "u.gguf", UNIGRAM)
    return [
        ("qwen2", "qwen3", a),
        ("qwen2", "qwen3", whole(tmp_path / "tokenizer.json", a, "qwen3")),
        ("qwen2", "qwen3", model),
        ("qwen2", "qwen3", model / "tokenizer" / "vocab.json"),
        ("t5", "t5", b),
        ("t5", "t5", whole(tmp_path / "t5.json", b, "t5")),
        ("t5", "t5", model),
        ("t5", "t5", model / "tokenizer_2" / "spiece.model"),
        ("llama", "mistral", llama_gguf(tmp_path / "l.gguf", *llama_pieces())),
    ]


def test_ids_are_transformers_from_every_file(tmp_path):
    for peer, component, path in files(tmp_path):
        tokenizer = open_tokenizer(path, component)
        for text, ids in zip(RECORDED["prompts"], RECORDED["ids"][peer], strict=True):
            assert tokenizer.encode(text) == ids, (path, text)


def test_ends_are_the_files_else_the_familys(tmp_path):
    ends = [open_tokenizer(path, component).ends for _, component, path in files(tmp_path)]
    end, pad = TOKENS.index("<|im_end|>"), TOKENS.index("<|endoftext|>")
    assert ends[:4] == [(None, end, pad, False)] * 2 + [(None, end, pad, True)] * 2
    assert ends[4:8] == [(None, 1, 0, False)] * 4
    assert ends[8] == (1, None, None, False)


def test_tekken_takes_a_whole_word_and_cuts_at_capitals():
    alphabet = {chr(c): c for c in range(33, 127)} | {"\u0120": 200, "Ca": 201, "tDo": 202, "abc": 203, "ab": 204}
    tokenizer = byte_level("here", alphabet, ["a b", "C a"], [], TEKKEN, Ends())
    assert tokenizer.encode("abc") == [203]  # no merge makes it
    assert tokenizer.encode("CatDog") == [201, *map(ord, "tDog")]


def filled(path, model="gpt2", tokens=("a", "b", "ab"), merges=("a b",), types=(1, 1, 1), more=lambda writer: None):
    def fill(writer):
        for add, values in ((writer.add_token_list, tokens), (writer.add_token_merges, merges)):
            if values is not None:
                add(list(values))
        if types is not None:
            writer.add_token_types(list(types))
        more(writer)

    return write_gguf(path, model, fill)


LONG = tuple(f"t{i}" for i in range(40))
DAMAGED = {
    "another-kind": ({"model": "bert"}, "found 'bert'"),
    "twice": ({"tokens": ("a", "b", "a")}, "'a' is there twice"),
    "no-tokens": ({"tokens": None}, "no tokenizer.ggml.tokens"),
    "no-merges": ({"merges": None}, "no tokenizer.ggml.merges"),
    "a-merge-of-nothing": ({"merges": ("a x",)}, "expected two tokens"),
    "a-merge-without-blank": ({"merges": ("ab",)}, "expected two tokens"),
    "types-too-few": ({"types": (1, 1)}, "2 token types, expected 3"),
    "no-types": ({"types": None}, "no tokenizer.ggml.token_type"),
    "id-beyond": ({"more": lambda w: w.add_eos_token_id(3)}, "eos_token_id is 3"),
    "id-negative": ({"more": lambda w: w.add_int32("tokenizer.ggml.eos_token_id", -1)}, "eos_token_id is -1"),
    "id-a-text": ({"more": lambda w: w.add_string("tokenizer.ggml.bos_token_id", "x")}, "bos_token_id is 'x'"),
    "unknown-cut": ({"more": lambda w: w.add_tokenizer_pre("who")}, "pre is 'who'"),
    "scores-are-texts": (
        {"model": "t5", "more": lambda w: w.add_array("tokenizer.ggml.scores", ["x"] * 3)},
        "an array of floats expected",
    ),
    "scores-not-finite": (
        {"model": "t5", "types": (2, 1, 1), "more": lambda w: w.add_token_scores([0.0, float("nan"), 0.0])},
        "score of token 1 is not finite",
    ),
    "scores-too-many": (
        {"model": "llama", "more": lambda w: w.add_token_scores([0.0] * 20)},
        "20 scores, expected 3",
    ),
    "no-unknown": ({"model": "t5", "more": lambda w: w.add_token_scores([0.0] * 3)}, "one token of type unknown"),
    "a-long-token": (
        {"model": "llama", "tokens": ("a", "b", "c" * 300), "more": lambda w: w.add_token_scores([0.0] * 3)},
        "a token of 300 characters",
    ),
    "a-flag-that-is-none": (
        {
            "model": "llama",
            "more": lambda w: (w.add_token_scores([0.0] * 3), w.add_uint32("tokenizer.ggml.add_space_prefix", 1)),
        },
        "true or false expected",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_metadata_is_named(tmp_path, name):
    given, says = DAMAGED[name]
    with pytest.raises(BadInput, match=says) as raised:
        open_tokenizer(filled(tmp_path / "a.gguf", **given), "qwen3")
    assert "\n" not in str(raised.value)
    assert "a.gguf" in str(raised.value)


@pytest.mark.parametrize("charsmap", [b"\xff" * 40, b"\x04\0\0\0" + b"\xff" * 40, b"\xff\xff\xff\x7f" + bytes(40)])
def test_a_damaged_charsmap_is_one_line(tmp_path, charsmap):
    def more(writer):
        writer.add_token_scores([0.0] * 3)
        writer.add_precompiled_charsmap(charsmap)

    path = filled(tmp_path / "a.gguf", "t5", types=(2, 1, 1), more=more)
    try:
        ids = open_tokenizer(path, "t5").encode("abc\u00e9")
    except BadInput as error:
        assert "\n" not in str(error)
    else:
        assert all(0 <= i < 3 for i in ids)


@pytest.mark.parametrize("claim", [2**40, 2**63, 1000])
def test_a_claimed_length_allocates_nothing(tmp_path, claim):
    path = filled(tmp_path / "a.gguf", tokens=LONG)
    data = path.read_bytes()
    for of, n in ((8, 40), (5, 3)):
        head = struct.pack("<IQ", of, n)
        assert data.count(head) == 1
        path.write_bytes(data.replace(head, struct.pack("<IQ", of, claim)))
        with pytest.raises(BadInput, match=r"a\.gguf"):
            open_tokenizer(path, "qwen3")


def test_a_text_that_is_no_utf8_is_refused(tmp_path):
    path = filled(tmp_path / "a.gguf", tokens=LONG)
    path.write_bytes(path.read_bytes().replace(b"t17", b"t\xff7"))
    with pytest.raises(BadInput, match="not UTF-8"):
        open_tokenizer(path, "qwen3")


def test_arrays_are_read_when_asked_for(tmp_path, monkeypatch):
    def more(writer):
        writer.add_array("floats", [0.5 * i for i in range(30)])
        writer.add_array("few", [1, 2, 3])

    weights = open_weights(filled(tmp_path / "a.gguf", tokens=LONG, more=more))
    assert texts(weights, "tokenizer.ggml.tokens") == list(LONG)
    np.testing.assert_array_equal(numbers(weights, "floats", "f"), np.arange(30) / 2)
    np.testing.assert_array_equal(numbers(weights, "few", "iu"), [1, 2, 3])
    for read, key, kind in (
        (numbers, "floats", "iu"),
        (numbers, "few", "f"),
        (numbers, "tokenizer.ggml.tokens", "f"),
    ):
        with pytest.raises(BadInput, match="another type found"):
            read(weights, key, kind)
    with pytest.raises(BadInput, match="another type found"):
        texts(weights, "floats")
    monkeypatch.setattr("refsd.files.gguf_arrays.MAX_BYTES", 50)
    with pytest.raises(BadInput, match="more than 50 bytes of text"):
        texts(weights, "tokenizer.ggml.tokens")
    monkeypatch.setattr("refsd.files.gguf_arrays.MAX_ELEMENTS", 39)
    with pytest.raises(BadInput, match="40 elements, at most 39"):
        texts(weights, "tokenizer.ggml.tokens")


def test_every_cut_of_a_spiece_is_read_or_refused_in_one_line(tmp_path):
    data = spiece(UNIGRAM[:20], TYPES[:20])
    path = tmp_path / "spiece.model"
    for n in range(0, len(data), 3):
        path.write_bytes(data[:n])
        try:
            open_tokenizer(path, "t5")
        except BadInput as error:
            assert "\n" not in str(error)
    for bad in (b"\x0a\xff\xff\xff\xff\x0f", b"\xff" * 12, b"\x0b", b"\x08\x01", spiece(UNIGRAM, TYPES, kind=3)):
        path.write_bytes(bad)
        with pytest.raises(BadInput, match=r"spiece\.model"):
            open_tokenizer(path, "t5")


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"model": {}}', '{"model": {"type": "BPE", "vocab": {"a": -1}}}', "[" * 9999]
)
def test_a_tokenizer_json_that_is_none(tmp_path, text):
    (tmp_path / "tokenizer.json").write_text(text)
    for path in (tmp_path / "tokenizer.json", tmp_path):
        with pytest.raises(BadInput) as raised:
            open_tokenizer(path, "qwen3")
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "ids", [{"a": -1}, {"a": 2**40}, {"a": "0"}, {"a": True}, {"a": 0, "b": 0}, {"a" * 300: 0}]
)
def test_a_vocab_json_with_ids_that_are_none(tmp_path, ids):
    (tmp_path / "vocab.json").write_text(json.dumps(ids))
    (tmp_path / "merges.txt").write_text("")
    with pytest.raises(BadInput, match=r"vocab\.json"):
        open_tokenizer(tmp_path / "vocab.json", "qwen3")


@pytest.mark.parametrize("number", [2**20, 2**31])
def test_a_tokenizer_json_with_an_id_that_no_table_has(tmp_path, number):
    model = {"type": "BPE", "vocab": {"a": 0, "b": number}, "merges": []}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": model, "added_tokens": []}))
    with pytest.raises(BadInput, match=rf"tokenizer\.json: token 'b' has the id {number}, expected 0 to 1048575"):
        open_tokenizer(tmp_path / "tokenizer.json", "qwen3")


def test_an_end_that_is_half_a_surrogate(tmp_path):
    model = {"type": "BPE", "vocab": {"a": 0}, "merges": []}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": model, "added_tokens": []}))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "\\ud800"}}')
    with pytest.raises(BadInput, match=r"tokenizer_config\.json: eos_token is '.ud800', which is no Unicode"):
        open_tokenizer(tmp_path / "tokenizer.json", "qwen3")


def test_half_a_surrogate_and_a_file_without_tokenizer(tmp_path):
    tokenizer = open_tokenizer(bytes_gguf(tmp_path / "b.gguf", TOKENS, MERGES, SPECIAL), "qwen3")
    with pytest.raises(BadInput, match="no Unicode"):
        tokenizer.encode("a\ud800")
    for name in ("a.safetensors", "a.json", "a.model"):
        with pytest.raises(BadInput, match=name):
            open_tokenizer(tmp_path / name, "t5")


def letters(text):
    return list(map(ord, text))


def test_rows_are_begun_ended_cut_and_padded():
    ends = Ends(1, 2, 3)
    t5 = FAMILIES["sd3"].encoders["t5"].rules["diffusers"]._replace(length=5)
    ids, mask = token_rows(letters, ends, ["ab", "abcdef", ""], t5, "")
    np.testing.assert_array_equal(ids, [[97, 98, 2, 3, 3], [97, 98, 99, 100, 2], [2, 3, 3, 3, 3]])
    np.testing.assert_array_equal(mask, [[1, 1, 1, 0, 0], [1] * 5, [1, 0, 0, 0, 0]])
    chunks = FAMILIES["flux"].encoders["t5"].rules["sdcpp"]._replace(length=4)
    ids, _ = token_rows(letters, ends, ["abcdef", ""], chunks, "")
    np.testing.assert_array_equal(ids, [[97, 98, 99, 2], [100, 101, 102, 2], [2, 3, 3, 3]])
    ids, mask = token_rows(letters, ends._replace(left=True), ["a", ""], t5, "")
    np.testing.assert_array_equal(ids, [[3, 3, 3, 97, 2], [3, 3, 3, 3, 2]])
    np.testing.assert_array_equal(mask, [[0, 0, 0, 1, 1], [0, 0, 0, 0, 1]])


def test_clip_g_pads_with_0_and_clip_l_with_its_end():
    ends = Ends(1, 2, 2)
    ids, _ = token_rows(letters, ends, ["a"], FAMILIES["sdxl"].encoders["clip_g"].rules["diffusers"], "")
    assert (ids.shape, ids[0, :5].tolist()) == ((1, 77), [1, 97, 2, 0, 0])
    ids, _ = token_rows(letters, ends, ["a"], FAMILIES["sdxl"].encoders["clip"].rules["diffusers"], "")
    assert ids[0, :5].tolist() == [1, 97, 2, 2, 2]


def test_words_around_a_prompt():
    rule = FAMILIES["flux2-klein"].encoders["qwen3"].rules["sdcpp"]._replace(length=None)
    ids, mask = token_rows(letters, Ends(None, 2, 3), ["{0}", "xyz"], rule, "")
    assert "".join(map(chr, ids[0])) == USER + "{0}" + NOT_THINKING
    assert mask.all()
    dev = FAMILIES["flux2-dev"].encoders["mistral"].rules["diffusers"]
    ids, _ = token_rows(letters, Ends(1, 2, 3), ["a [IMG]cat"], dev, "")
    assert ids.shape == (1, 512)
    assert "".join(map(chr, ids[0])).rstrip("\3").endswith("[/SYSTEM_PROMPT][INST]a cat[/INST]")


def test_a_missing_end_is_named():
    for rule, name in (("flux", "t5"), "EOS"), (("flux2-dev", "mistral"), "BOS"), (("zimage", "qwen3"), "padding"):
        with pytest.raises(BadInput, match=f"no {name} token"):
            token_rows(letters, Ends(), ["a"], FAMILIES[rule[0]].encoders[rule[1]].rules["diffusers"], "vocab")


def test_every_component_has_its_family_under_both_engines():
    assert all(component in FAMILIES[family].encoders for component, family in DEFAULT_FAMILY.items())
    rules = [encoder.rules for variant in VARIANTS.values() for encoder in variant.encoders.values()]
    assert all(of.keys() >= {"diffusers", "sdcpp"} and all(rule.source for rule in of.values()) for of in rules)


def test_the_command_writes_what_forward_takes(tmp_path):
    gguf, out = bytes_gguf(tmp_path / "b.gguf", TOKENS, MERGES, SPECIAL), tmp_path / "ids.safetensors"
    given = ["tokenize", str(gguf), "--component", "qwen3", "-p", "a cat", "-p", "", "--length", "90"]
    result = CliRunner().invoke(app, [*given, "-o", str(out), "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.output)
    tensors = {name: tensor.values() for name, tensor in open_weights(out).items()}
    assert tensors.keys() == {"input_ids", "attention_mask"}
    np.testing.assert_array_equal(tensors["input_ids"], told["input_ids"])
    np.testing.assert_array_equal(tensors["attention_mask"].sum(axis=1), told["lengths"])
    assert "".join(TOKENS[i] for i in told["input_ids"][1][: told["lengths"][1]]).startswith("<|im_start|>")
    plain = CliRunner().invoke(app, given)
    assert plain.exit_code == 0 and "of 90:" in plain.output
    t5 = unigram_gguf(tmp_path / "u.gguf", UNIGRAM)
    assert (
        CliRunner().invoke(app, ["tokenize", str(t5), "--component", "t5", "-p", "a", "-o", str(out)]).exit_code
        == 0
    )
    assert open_weights(out).keys() == {"input_ids"}  # Flux's T5 sees its padding


@pytest.mark.parametrize(
    "args",
    [
        "--component vae",
        "--component t5",
        "--component t5 --family sd1",
        "--component t5 --like x",
        "--component t5 --tokenizer no.json",
        "--component t5 --tokenizer no.json --length -3",
    ],
)
def test_the_command_refuses(args):
    result = CliRunner().invoke(app, ["tokenize", "-p", "a", *args.split()])
    assert isinstance(result.exception, BadInput)


def test_an_empty_prompt_that_is_a_space():
    rule = VARIANTS["qwen-image21"].encoders["qwen3_vl"].rules["diffusers"]._replace(around=("<", ">"))
    ids, mask = token_rows(letters, Ends(None, 2, 3), ["", "ab"], rule, "")
    assert ["".join(map(chr, row)) for row in ids] == ["< >\3", "<ab>"] and mask.tolist() == [[1, 1, 1, 0], [1] * 4]


def test_krea_2_s_padding_stands_before_the_template_s_end():
    rule = FAMILIES["krea2"].encoders["qwen3_vl"].rules["diffusers"]
    assert (rule.length, rule.drop, rule.kept) == (546, 34, 5)
    rule = rule._replace(length=8, kept=2, around=("<", "!?"))
    ids, mask = token_rows(letters, Ends(None, 2, 3), ["ab", "abcdefghij"], rule, "")
    assert ["".join(map(chr, row)) for row in ids] == ["<ab\3\3\3!?", "<abcde!?"]
    np.testing.assert_array_equal(mask, [[1, 1, 1, 0, 0, 0, 1, 1], [1] * 8])
    positions = counted_positions(mask)
    np.testing.assert_array_equal(positions[..., 0], [[0, 1, 2, 2, 2, 2, 3, 4], range(8)])
    assert (positions == positions[..., :1]).all() and positions.shape == (2, 8, 3)


def test_flux_3_s_rows_are_whole_windows():
    """A prompt that is too long is cut, with the end of its template."""
    rule = FAMILIES["flux3"].encoders["qwen3_vl"].rules["diffusers"]
    assert (rule.length, rule.multiple, rule.mask) == (8192, 80, True)
    rule = rule._replace(length=11, multiple=4, around=("<", "!?"))
    for prompt, row in (
        ("abcd", "<abcd!?\3"),
        ("abcde", "<abcde!?"),
        ("abcdef", "<abcdef!?\3\3"),
        ("a" * 9, "<aaaaaaaaa!"),
    ):
        ids, mask = token_rows(letters, Ends(None, 2, 3), [prompt], rule, "")
        assert "".join(map(chr, ids[0])) == row
        assert mask[0].tolist() == [int(letter != "\3") for letter in row]
    positions = places_with_padding_at_1(np.array([[1, 1, 1, 1, 0, 0], [1] * 6]))
    np.testing.assert_array_equal(positions[..., 0], [[0, 1, 2, 3, 1, 1], range(6)])
    assert (positions == positions[..., :1]).all() and positions.shape == (2, 6, 3)
