# SPDX-License-Identifier: BSD-3-Clause
"""The command line in this process."""

from click.testing import CliRunner

from skydelta.pipeline.cli import cli


def call(*words):
    """``call("run", "wf.toml", ...)``: its result; whatever it raises but an exit fails the test."""
    result = CliRunner().invoke(cli, [str(w) for w in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result
