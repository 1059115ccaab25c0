"""Build the site, offline: python website/build.py [--check]

Pages are those of the repository (docs/, the READMEs, the notebooks with their stored outputs) and website/pages/;
code pages, tables and diagrams are made from the code, the scoreboard from board.json. The result is
build/site/html/index.html. With --check every link and anchor of the result is followed, and every page must be
reached from the front page.
"""

import argparse
import shutil
import sys
import time
from pathlib import Path

import assemble
import check_links
import sphinx.cmd.build

from refsd.scoreboard import runs, site

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "site"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="follow all links of the result")
    parser.add_argument("-o", "--out", type=Path, default=BUILD / "html", help="folder for the pages")
    asked = parser.parse_args()
    began = time.perf_counter()
    source = BUILD / "source"
    shutil.rmtree(source, ignore_errors=True)
    assemble.assemble(source)
    # -W: a warning (a page in no table of contents, a reference to nothing) is an error.
    flags = ["-q", "-W", "-n", "--keep-going", "-d", str(BUILD / "doctrees"), "-c", str(Path(__file__).parent)]
    status = sphinx.cmd.build.main([*flags, "-b", "html", str(source), str(asked.out)])
    if status == 0:
        site.write(asked.out / "board", site.gathered(runs.read(Path(__file__).parent / "board.json")))
    if status == 0 and asked.check:
        wrong = check_links.wrong_links(asked.out)
        print(*wrong, sep="\n")
        status = 1 if wrong else 0
    if status == 0:
        pages = sum(1 for _ in asked.out.rglob("*.html"))
        print(f"{asked.out / 'index.html'}: {pages} pages, {time.perf_counter() - began:.0f} s")
    return status


if __name__ == "__main__":
    sys.exit(main())
