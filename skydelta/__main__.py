# SPDX-License-Identifier: BSD-3-Clause
"""``python -m skydelta``."""

from skydelta.pipeline.cli import main

if __name__ == "__main__":
    main()
