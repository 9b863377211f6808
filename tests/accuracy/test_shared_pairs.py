# SPDX-License-Identifier: BSD-3-Clause
"""The job on pairs that are not ours: a seeded synthetic one scored by its own tool, and two real ones."""

import json
import subprocess
import sys

import numpy as np
import pytest
from astropy.io import fits
from scipy.ndimage import binary_dilation, gaussian_filter
from support_scoring import robust_std

from skydelta.pipeline.runner import run

pytestmark = pytest.mark.data


@pytest.mark.slow
def test_synthetic_pair_against_its_perfect_difference(shared_tools, tmp_path, figure):
    pair, out = tmp_path / "pair", tmp_path / "out"
    make = [sys.executable, shared_tools / "make_pair.py", pair, "--n", "2048", "--seed", "1", "--oracle"]
    subprocess.run(make, check=True, capture_output=True)
    planes = {f"steps.{r}.{k}": str(pair / f) for r, s in (("science", "sci"), ("reference", "ref"))
              for k, f in (("variance", f"{s}_var.fits"), ("mask", "mask.fits"))}  # fmt: skip
    result = run(
        "difference",
        inputs={"science": pair / "sci.fits", "reference": pair / "ref.fits"},
        out=out,
        device="cpu",
        set_=[f'{k}="{v}"' for k, v in planes.items()],
    )
    assert result.exit_code == 0
    product = out / "items" / "sci" / "difference.fits"
    score = [sys.executable, shared_tools / "score_difference.py", pair, product, "--hdu", "SCI", "--var-hdu", "VAR"]
    scored = subprocess.run([*score, "--score-hdu", "SNR", "--oracle"], check=True, capture_output=True, text=True)
    s = json.loads(scored.stdout)
    figure("shared pair: |std_norm - 1|", abs(s["std_norm"] - 1), 0.01)
    figure("shared pair: background rms / perfect", s["d_bkg_ratio"], 1.08)
    figure("shared pair: |chi2 at stars - perfect|", abs(s["d_chi2_star_med"]), 0.03)
    figure("shared pair: chi2 at bright stars - perfect", s["d_chi2_bright_med"], 0.08)
    figure("shared pair: sources fewer", -s["d_hits"], 1)
    figure("shared pair: positive false peaks more", s["d_fp_pos"], 1)
    figure("shared pair: negative false peaks more", s["d_fp_neg"], 1)
    figure("shared pair: |flux ratio - perfect|", abs(s["d_flux_ratio_wmean"]), 0.005)
    figure("shared pair: |score std - 1|", abs(s["score_std"] - 1), 0.02)


def blank_std(folder):
    """Robust std of D / sigma away from light in the science image."""
    with fits.open(folder / "difference.fits") as hdus, fits.open(folder / "preview.fits") as previews:
        z = hdus["SCI"].data / np.sqrt(hdus["VAR"].data)
        science, block = previews["SCIENCE"].data, previews["SCIENCE"].header["BLOCK"]
    smooth = gaussian_filter(np.nan_to_num(science), 1.5)
    light = binary_dilation(smooth > 3 * robust_std(smooth), iterations=3)
    light = np.kron(light, np.ones((block, block), bool))[: z.shape[0], : z.shape[1]]
    return robust_std(z[np.isfinite(z) & ~light])


def test_jwst_pair_is_flat(shared_data, tmp_path, figure):
    folder = shared_data / "pairs" / "jwst_nircam_f200w"
    names = {
        "science": "jw02561001002-02561-o001_t003_nircam_clear-f200w_i2d_stamp",
        "reference": "jw01324001001-01324-o001_t001_nircam_clear-f200w_i2d_stamp",
    }
    settings = [
        f'steps.{role}.{plane}="{folder / (name + suffix)}"'
        for role, name in names.items()
        for plane, suffix in (("sigma", ".noise.fits"), ("psf", ".WebbPSF.fits"))
    ]
    result = run(
        "difference",
        inputs={role: folder / f"{name}.fits" for role, name in names.items()},
        out=tmp_path,
        device="cpu",
        set_=settings,
    )
    assert result.exit_code == 0
    figure("JWST: |std of D / sigma - 1|", abs(blank_std(tmp_path / "items" / result.receipts[0]["id"]) - 1), 0.05)


def test_decam_pair_is_flat(shared_data, tmp_path, figure):
    folder = shared_data / "pairs" / "decam_i"
    result = run(
        "difference",
        inputs={"science": folder / "Stack-DEC-OBS04.fits", "reference": folder / "Stack-DEC-OBS18.fits"},
        out=tmp_path,
        device="cpu",
    )
    assert result.exit_code == 0
    figure("DECam: |std of D / sigma - 1|", abs(blank_std(tmp_path / "items" / result.receipts[0]["id"]) - 1), 0.05)
