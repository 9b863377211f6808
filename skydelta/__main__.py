# SPDX-License-Identifier: BSD-3-Clause
"""``python -m skydelta``."""

from __future__ import annotations

import sys

from skydelta.errors import ExitCode


def main() -> None:
    """Run the command line; Ctrl-C while it is imported is one line and exit code 130, as it is later."""
    try:
        from skydelta.pipeline.cli import main as lead

        lead()
    except KeyboardInterrupt:
        sys.stderr.write("skydelta: interrupted; nothing has begun\n")
        sys.exit(int(ExitCode.INTERRUPTED))


if __name__ == "__main__":
    main()
