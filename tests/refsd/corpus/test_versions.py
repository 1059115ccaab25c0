"""The published corpus: its cases are those of today, its profiles name some, and a changed case is found."""

import fnmatch

import msgspec
import pytest
from typer.testing import CliRunner

from refsd.cases import CASES
from refsd.cli import app
from refsd.corpus import rules, versions
from refsd.corpus.profiles import PROFILES
from refsd.numerics.errors import BadInput


@pytest.mark.parametrize("version", versions.versions())
def test_no_published_case_has_changed(version):
    corpus = versions.published(version)
    wrong = versions.changed(list(corpus.cases), corpus.cases)
    assert not wrong, (
        f"{wrong[0]} of corpus {version} is gone or asks for something else: name the changed case anew, or make a "
        f"new version with `refsd corpus --make VERSION -o refsd/corpus/VERSION.json`"
    )


def test_every_glob_of_a_profile_names_a_case():
    corpus = versions.published()
    for name, profile in PROFILES.items():
        for glob in profile.globs:
            assert fnmatch.filter(corpus.cases, glob), f"{name}: {glob}"
        assert all(case in corpus.cases for case in corpus.of(name))


def test_a_case_that_asks_for_something_else_has_another_digest():
    case = CASES["layer_norm/f32/plain-x2x77x64"]
    other = msgspec.structs.replace(case, params={**case.params, "eps": 2e-5})
    model = CASES["sd15/clip/long"]
    quiet = msgspec.structs.replace(model, model=msgspec.structs.replace(model.model, quiet=3))
    assert versions.digest(case) != versions.digest(other)
    assert versions.digest(model) != versions.digest(quiet)
    assert versions.digest(case) == versions.digest(msgspec.json.decode(msgspec.json.encode(case), type=type(case)))
    assert versions.changed([case.name, "gone/f32/x"], {case.name: versions.digest(other)}) == [
        case.name,
        "gone/f32/x",
    ]


def test_an_added_case_belongs_to_the_next_version():
    corpus = versions.published()
    fewer = versions.Corpus("2026.12", {name: corpus.cases[name] for name in list(corpus.cases)[1:]})
    assert not versions.changed(list(fewer.cases), fewer.cases)
    assert fewer.digest != corpus.digest


def test_comments_and_layout_change_no_rule():
    source = 'def f(x):\n    """Say."""\n    return x <= 1  # why\n'
    assert rules._bare(source) == rules._bare("def f( x ):\n    return x <= 1\n")
    assert rules._bare(source) != rules._bare("def f(x):\n    return x <= 2\n")
    assert len(rules.digest()) == 64
    assert rules.digests(["silu", "model/unet"]).keys() == {"verdicts", "silu"}


@pytest.mark.parametrize(
    ("text", "what"),
    [("sd15", "a version and a name"), ("2026.10/sd15", "no corpus '2026.10'"), ("2026.11/sd51", "did you mean")],
)
def test_an_unknown_profile_is_told(text, what):
    with pytest.raises(BadInput, match=what):
        versions.profile_cases(text)


def test_the_command_lists_and_makes(tmp_path):
    def told(*arguments):
        done = CliRunner().invoke(app, ["corpus", *arguments])
        assert done.exit_code == 0, done.output
        return done.output

    assert "2026.11/sd15" in told() and "sd15/unet/between" in told("2026.11/sd15").split("\n")
    assert msgspec.json.decode(told("--json"))["rules"] == rules.digest()
    told("--make", "2027.01", "-o", str(tmp_path / "made.json"))
    made = msgspec.json.decode((tmp_path / "made.json").read_bytes(), type=versions.Corpus)
    assert made.version == "2027.01" and made.cases.items() >= versions.published().cases.items()
