"""A process that makes goldens beside another that judges: `python -m refsd.goldens.maker STORE < cases.json`.

It prints the name of each case when its golden is stored, in the given order.
"""

import sys

import msgspec

from refsd.engines.reference import Reference
from refsd.golden.case import Case
from refsd.golden.store import make
from refsd.weights.model_files import model_files, open_store, trim_model_files


def main() -> None:
    cases = msgspec.json.decode(sys.stdin.buffer.read(), type=list[Case])

    def done(case: Case, new: bool) -> None:
        print(case.name, flush=True)
        trim_model_files()

    make(open_store(sys.argv[1]), cases, Reference(model_files=model_files), done)


if __name__ == "__main__":
    main()
