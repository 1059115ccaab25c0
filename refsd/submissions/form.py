"""The form of a submission: a zip with five members, each bounded in size.

submission.json       who judged what, under which rules, and the SHA-256 of the other members
report.json           the report, without metrics
evidence.json         the metrics of every output and tap
outputs.safetensors   outputs small enough to travel whole, as "<number of the evidence>/<output>"
sketches.safetensors  sketches of the other outputs, likewise named
"""

from typing import Any

import msgspec

from refsd.golden.metrics import Metrics
from refsd.golden.waivers import Waiver

FORMAT = 1
SUBMISSION, REPORT, EVIDENCE = "submission.json", "report.json", "evidence.json"
OUTPUTS, SKETCHES = "outputs.safetensors", "sketches.safetensors"
# Member -> the most bytes that it may have, unpacked. The smaller ones are read first.
MEMBERS = {SUBMISSION: 2**22, REPORT: 2**25, SKETCHES: 2**25, EVIDENCE: 2**27, OUTPUTS: 2**26}
LARGEST = 2**27  # bytes of the file
# Elements of an answer that travels whole; of a trajectory or model, whose units depend on the answer.
WHOLE, WHOLE_OWN = 2**11, 2**18


class Evidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was measured of one answer.

    numerics: number in the submission's list of numerics
    unknown:  how many of the outputs are taps whose names the reference does not have; they come first
    whole:    its outputs travel whole; if not, as sketches
    """

    engine: str
    case: str
    numerics: int
    unknown: int
    whole: bool
    outputs: list[Metrics]
    taps: list[Metrics]


class Submission(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    statement: the submitter's words
    date:      the day of the run, on which its waivers are held to hold
    corpus:    version; corpus_sha256: of its manifest
    rules:     digests of the rules of verdicts, and of each operation's bounds
    cases:     name -> digest of the question that was put
    drivers:   engine -> driver, in the submitter's words
    system:    operating system and processor
    numerics:  that the engines declared, field by field
    deviations: engine -> names of the deviations that it declared
    sha256:    of the other members
    """

    format: int
    refsd: str
    statement: str
    date: str
    corpus: str
    corpus_sha256: str
    rules: dict[str, str]
    cases: dict[str, str]
    drivers: dict[str, str]
    system: str
    numerics: list[dict[str, Any]]
    deviations: dict[str, list[str]]
    waivers: list[Waiver]
    sha256: dict[str, str]
