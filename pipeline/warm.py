# SPDX-License-Identifier: BSD-3-Clause
"""Compile the kernels once, so that no timed job has to: those of the main job here, others in a second process."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import get_args

import numpy as np

from skydelta.errors import AlgorithmError

SIZE, SIGMA, HALF = 96, 1.5, 9
"""Of the difference that is made up for `beside`: side, width of a source, half-size of its PSF, px."""


def warm_up(device: str = "auto") -> float:
    """Compile every kernel of the main job once, on a small simulated pair; returns the seconds it took.

    Numba compiles in one thread, and kernels are kept in files: a second process makes those of the steps at the end
    of the job, of all ways to resample and of the usual codecs (quantised Rice, and GZIP) while this one is at its
    beginning.

    Raises
    ------
    AlgorithmError
        The job does not run on this machine.
    """
    from skydelta.pipeline.runner import run
    from skydelta.pipeline.simulate import simulate

    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        pair = simulate(Path(folder) / "pair", size=384, transients=3, galaxies=2, saturated=1)
        code = "import sys; from skydelta.pipeline.warm import beside; beside(*sys.argv[1:])"
        words = [sys.executable, "-c", code, str(pair.science), str(pair.reference), device]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as second:
            try:
                inputs: dict[str, str | Path] = {"science": pair.science, "reference": pair.reference}
                result = run("difference", inputs=inputs, out=Path(folder) / "out", device=device)
                if result.exit_code:
                    error = result.receipts[0]["error"]["message"]
                    raise AlgorithmError(f"the simulated pair fails here: {error}")
                _, said = second.communicate()
            except BaseException:
                second.kill()
                raise
        if second.returncode:
            last = (said.strip().splitlines() or [f"exit {second.returncode}"])[-1]
            raise AlgorithmError(f"the kernels beside the job do not compile here: {last}")
    return time.perf_counter() - begin


def beside(science: str, reference: str, device: str) -> None:
    """What the second process does, latest steps of the job first.

    Parameters
    ----------
    science, reference : str
        The files of the simulated pair.
    """
    from skydelta.io.exposure import Exposure
    from skydelta.io.fits.writer import write
    from skydelta.io.psf import PixelPsf
    from skydelta.io.read import read
    from skydelta.kernels.resample import Method
    from skydelta.stages.align import Align
    from skydelta.stages.detect import Detect
    from skydelta.stages.fit import Fit

    psf = PixelPsf.constant(_source(2 * HALF + 1, HALF, HALF).astype(np.float32), (SIZE, SIZE))
    image = np.random.default_rng(1).normal(size=(SIZE, SIZE)) + 400 * _source(SIZE, 25, 25)
    image += 900 * (_source(SIZE, 60, 60) - _source(SIZE, 63, 62))
    difference = Exposure(image.astype(np.float32), np.ones((SIZE, SIZE), np.float32), psf=psf)
    Fit()(difference, catalog=Detect()(difference, device=device), device=device)
    exposure, other = (read(path, device=device) for path in (science, reference))
    with tempfile.TemporaryDirectory() as folder:
        lossless, lossy = Path(folder) / "lossless.fits", Path(folder) / "lossy.fits"
        write(exposure, lossless, "GZIP_2")
        write(exposure, lossy, "RICE_1")
        for packed in (lossless, lossy):
            read(packed, device=device)
    for method in get_args(Method):
        Align(method=method)(other, onto=exposure, device=device)


def _source(side: int, x: float, y: float) -> np.ndarray:
    """A Gaussian source of flux 1: float64 (side, side)."""
    at = np.arange(side)
    along = np.exp(-0.5 * ((at - np.array([[y], [x]])) / SIGMA) ** 2) / np.sqrt(2 * np.pi) / SIGMA
    return along[0, :, None] * along[1]
