# SPDX-License-Identifier: BSD-3-Clause
"""A short, seeded run of the mutations of `support_fuzz`, in a child process: a read past a buffer would kill it."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_damaged_files_are_read_or_refused_inside_their_buffers():
    script = ROOT / "tests" / "support" / "support_fuzz.py"
    done = subprocess.run(
        [sys.executable, script, "--files", "1500", "--tables", "6000", "--seed", "3"],
        capture_output=True, text=True, timeout=600, check=False, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert "files, seed 3" in done.stdout, done.stdout[-500:] + done.stderr[-2000:]
    for line, (well, badly) in zip(
        (line for line in done.stdout.splitlines() if "seed" in line),
        (("sound", "faulty"), ("read", "refused")),
        strict=True,
    ):
        for word in (well, badly):
            assert int(line.split(f"'{word}': ")[1].split(",")[0].split("}")[0]) > 300
