"""List the files of a report and the functions that write them."""

from collections.abc import Callable, Mapping, Sequence

from refsd.golden.report import Pair, Report
from refsd.reports.html import html
from refsd.reports.junit import junit
from refsd.reports.markdown import markdown
from refsd.reports.pictures import Picture
from refsd.reports.stored import encode

JSON, JUNIT = "conform.json", "junit.xml"
KEPT = "failing"
Form = Callable[[Report, Mapping[Pair, Sequence[Picture]]], bytes]
FORMS: Mapping[str, Form] = {
    "report.html": lambda report, pictures: html(report, pictures).encode(),
    "report.md": lambda report, pictures: markdown(report).encode(),
    JSON: lambda report, pictures: encode(report),
    JUNIT: lambda report, pictures: junit(report),
}
