# SPDX-License-Identifier: BSD-3-Clause
"""Fill the tables of the documentation from the code: ``python docs/tables.py``.

A page asks for one with a line ``<!-- settings: NAME -->``, NAME a stage or ``simulate``, or ``<!-- flags -->`` for the
flag bits of catalogues; everything from there to ``<!-- end -->`` is replaced. A test calls `filled` and fails when a
page differs.
"""

from __future__ import annotations

import re
from pathlib import Path

from skydelta.io.catalog import FLAGS
from skydelta.pipeline.simulate import SimulationConfig
from skydelta.stages import registry
from skydelta.stages.base import describe

DOCS = Path(__file__).resolve().parent
BLOCK = re.compile(r"(<!-- (?P<kind>settings|flags)(?:: (?P<name>\w+))? -->\n).*?(<!-- end -->)", re.DOTALL)


def settings(name: str) -> str:
    """The settings of a stage (or of the simulator) as a Markdown table."""
    model = SimulationConfig if name == "simulate" else registry.get(name).config_class()
    rows = ["| setting | default | allowed | meaning |", "|---|---|---|---|"]
    rows += [f"| `{f.name}` | `{f.default}` | {f.type} | {f.description} |" for f in describe(model)]
    return "\n".join(rows) + "\n" if len(rows) > 2 else "This stage has no settings.\n"


def flags() -> str:
    """The flag bits of catalogues as a Markdown table."""
    rows = ["| bit | flag | meaning |", "|---|---|---|"]
    return "\n".join([*rows, *(f"| {bit} | `{name}` | {words} |" for name, (bit, words) in FLAGS.items())]) + "\n"


def filled(text: str) -> str:
    """A page with its tables as the code has them now."""
    return BLOCK.sub(lambda m: m[1] + (settings(m["name"]) if m["kind"] == "settings" else flags()) + m[4], text)


def main() -> None:
    for page in sorted(DOCS.rglob("*.md")):
        page.write_text(filled(page.read_text()))


if __name__ == "__main__":
    main()
