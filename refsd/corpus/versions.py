"""Versions of the corpus: a manifest with the digest of each case, and the cases of its profiles.

A case of a published version never changes: one that must is given another name, or a new version is made with
`refsd corpus --make VERSION`. Cases that are added belong to the next version, so adding one touches no manifest.
"""

import fnmatch
import functools
import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources

import msgspec

from refsd import cases
from refsd.corpus.profiles import PROFILES
from refsd.golden.case import Case, ModelRecipe
from refsd.golden.wording import did_you_mean
from refsd.numerics.errors import BadInput
from refsd.weights.recipe_files import fingerprint

VERSION = "2026.11"


class Corpus(msgspec.Struct, frozen=True):
    """
    version: year and month: "2026.11"
    cases:   name -> digest of its question: recipes of inputs and weights, parameters; 16 hexadecimal digits
    """

    version: str
    cases: dict[str, str]

    @property
    def digest(self) -> str:
        """The SHA-256 of all names and digests, in hexadecimal digits."""
        return hashlib.sha256(
            "".join(f"{name} {self.cases[name]}\n" for name in sorted(self.cases)).encode()
        ).hexdigest()

    def of(self, profile: str) -> list[str]:
        """List the cases of a profile: "sd15". Raises BadInput for an unknown one."""
        if profile not in PROFILES:
            meant = did_you_mean(profile, PROFILES)
            raise BadInput(f"no profile {profile!r}{meant}: there are {', '.join(PROFILES)}")
        globs = PROFILES[profile].globs
        return [name for name in self.cases if any(fnmatch.fnmatchcase(name, glob) for glob in globs)]


def present(version: str = VERSION) -> Corpus:
    """Return the corpus of the cases as they are now."""
    return Corpus(version, {case.name: digest(case) for case in sorted(cases.select(), key=lambda case: case.name)})


@functools.cache
def published(version: str = VERSION) -> Corpus:
    """Read a version's manifest. Raises BadInput for an unknown version."""
    known = versions()
    if version not in known:
        raise BadInput(f"no corpus {version!r}{did_you_mean(version, known)}: there are {', '.join(known)}")
    return msgspec.json.decode(
        resources.files("refsd.corpus").joinpath(f"{version}.json").read_bytes(), type=Corpus
    )


def versions() -> list[str]:
    """List the published versions, the oldest first."""
    folder = resources.files("refsd.corpus")
    return sorted(path.name.removesuffix(".json") for path in folder.iterdir() if path.name.endswith(".json"))


def encode(corpus: Corpus) -> bytes:
    """Write a manifest, a line for each case."""
    return msgspec.json.format(msgspec.json.encode(corpus), indent=1) + b"\n"


def digest(case: Case) -> str:
    """Digest a case's question: its text, and the recipes of its model's weights."""
    weights = _weights(case.model) if case.model is not None else ""
    return hashlib.sha256(msgspec.json.encode([case, weights], order="sorted")).hexdigest()[:16]


@functools.cache
def _weights(model: ModelRecipe) -> str:
    return fingerprint(model)


def changed(names: Sequence[str], known: Mapping[str, str]) -> list[str]:
    """List the names whose case is gone, or is not the one that has the known digest."""
    now = cases.CASES
    return [name for name in names if name not in now or digest(now[name]) != known.get(name)]


def profile_names(text: str) -> list[str]:
    """List the cases of a profile: "2026.11/sd15". Raises BadInput for an unknown one."""
    version, slash, name = text.partition("/")
    if not slash:
        raise BadInput(f"profile {text!r}: expected a version and a name, as {VERSION}/sd15")
    return published(version).of(name)


def profile_cases(text: str) -> list[Case]:
    """Return the cases of a profile.

    Raises BadInput for an unknown one, and where a case has changed since the version was made.
    """
    wanted, version = profile_names(text), text.partition("/")[0]
    wrong = changed(wanted, published(version).cases)
    if wrong:
        raise BadInput(
            f"{text}: the case {wrong[0]} has changed since corpus {version}: use the refsd of that version"
        )
    return [cases.CASES[name] for name in wanted]
