# SPDX-License-Identifier: BSD-3-Clause
"""``python -m skydelta``."""

from __future__ import annotations

from skydelta import interrupt


def main() -> None:
    """Run the command line; Ctrl-C while it is imported is one line and exit code 130, as it is later."""
    with interrupt.command():
        from skydelta.pipeline.cli import main as lead

        lead()


if __name__ == "__main__":
    main()
