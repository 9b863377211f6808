# SPDX-License-Identifier: BSD-3-Clause
"""What a benchmark leaves: its result on the terminal, and in a file where one is asked for."""

import json
from pathlib import Path
from typing import Any


def record(result: dict[str, Any], out: Path | None) -> None:
    """Print a result as JSON, and write the same text."""
    text = json.dumps(result, indent=1)
    print(text)
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text + "\n")
