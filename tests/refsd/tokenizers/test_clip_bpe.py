from refsd.tokenizers.clip_bpe import ClipBpe, byte_characters, vocabulary

MERGES = [("c", "a"), ("ca", "t</w>"), ("o", "v"), ("l", "ov"), ("lov", "e</w>")]


def test_vocabulary_order():
    tokens = vocabulary(MERGES)
    assert len(tokens) == 512 + len(MERGES) + 2 and len(set(tokens)) == len(tokens)
    assert tokens[0] == "!" and tokens[256] == "!</w>"
    assert tokens[513 - 1 + 1 :][:2] == ["cat</w>", "ov"]
    assert tokens[-2:] == ["<|startoftext|>", "<|endoftext|>"]


def test_every_byte_has_its_character():
    single = byte_characters()
    assert len(set(single)) == 256 and not any(c.isspace() for c in single)
    assert single[:3] == ["!", '"', "#"] and single[188] == "\u0100" and single[-1] == "\u0143"


def test_merges_by_hand():
    tokenizer = ClipBpe(MERGES, "toy")
    single = byte_characters()
    assert tokenizer.encode("cat") == [513]
    assert tokenizer.encode("  LOVE\n cat ") == [516, 513]
    assert tokenizer.encode("cats") == [512, single.index("t"), 256 + single.index("s")]
    assert tokenizer.encode("é") == [single.index("Ã"), 256 + single.index("©")]  # two bytes of UTF-8
    assert tokenizer.encode("42") == [256 + single.index("4"), 256 + single.index("2")]  # each digit is a word
    assert tokenizer.encode("cat's") == [513, single.index("'"), 256 + single.index("s")]
    assert tokenizer.encode("<|endoftext|>") == [518]
    assert tokenizer.encode("") == []
