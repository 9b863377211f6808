# SPDX-License-Identifier: BSD-3-Clause
"""The workflow `stack` through the command line: one stack of a list, one for each id of a table, against the truth."""

import numpy as np
import pytest
from astropy.io import fits
from astropy.table import Table
from support_cli import call
from support_stack import grid_field, visit

import skydelta
from skydelta.io.fits.writer import exposure_hdus, write_hdus
from skydelta.pipeline.receipts import read_json


@pytest.fixture(scope="module")
def night(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("night"), np.random.default_rng(3)
    field = grid_field(rng)
    for k in range(5):
        write_hdus(folder / f"v{k}.fits", exposure_hdus(visit(field, rng, k, sky=100.0 + 20 * k)))
    return folder, field


def test_a_list_is_one_stack(night, tmp_path, figure):
    folder, field = night
    words = ("run", "stack", "--set", f"inputs.images={folder}/v*.fits", "-o", tmp_path / "out", "--device", "cpu",
             "--set", "steps.stack.scaling=none")  # fmt: skip
    plan = call(*words, "--dry-run")
    assert plan.exit_code == 0 and "items: 1 (v0)" in plan.stdout and "stack.fits" in plan.stdout
    assert call(*words).exit_code == 0
    out = tmp_path / "out" / "items" / "v0" / "stack.fits"
    image = skydelta.read(out, device="cpu")
    flux = field.boxes(np.where(np.isfinite(image.image), image.image, 0), image.wcs)
    level = float(np.nanmedian(image.image))
    ratio = (flux - 27**2 * level) / field.flux
    figure("workflow stack: median flux over the true one", float(np.nanmedian(ratio)), (0.99, 1.01))
    assert fits.getdata(out, "NEXP").max() == 5
    assert [str(i).strip() for i in Table.read(out, hdu="INPUTS")["id"]] == [f"v{k}.fits" for k in range(5)]
    receipt = read_json(out.parent / "receipt.json")
    assert sorted(receipt["inputs"]) == [f"images[{k}]" for k in range(5)]
    assert "done already" in call(*words).stdout
    files = [folder / f"v{k}.fits" for k in range(5)]
    assert call("stack", *files, "--scaling", "none", "-o", tmp_path / "cli.fits", "--device", "cpu").exit_code == 0
    assert (tmp_path / "cli.fits").read_bytes() == out.read_bytes()


def test_rows_of_one_id_are_one_stack_and_a_changed_file_is_run_again(night, tmp_path):
    folder, field = night
    for k in range(5):
        (tmp_path / f"v{k}.fits").write_bytes((folder / f"v{k}.fits").read_bytes())
    rows = [("r", 0), ("g", 1), ("r", 2), ("g", 3), ("r", 4)]
    table = Table({"id": [r[0] for r in rows], "images": [f"v{r[1]}.fits" for r in rows]})
    table.write(tmp_path / "night.ecsv")
    words = ("run", "stack", "--set", f"inputs.table={tmp_path}/night.ecsv", "-o", tmp_path / "out", "--device", "cpu",
             "--set", "steps.stack.scaling=none")  # fmt: skip
    assert call(*words).exit_code == 0
    for name, files in (("r", ["v0", "v2", "v4"]), ("g", ["v1", "v3"])):
        found = Table.read(tmp_path / "out" / "items" / name / "stack.fits", hdu="INPUTS")["id"]
        assert [str(i).strip() for i in found] == [f"{f}.fits" for f in files]
    write_hdus(tmp_path / "v4.fits", exposure_hdus(visit(field, np.random.default_rng(9), 0)))
    again = call(*words).stdout
    assert "g: done already" in again and "r: done already" not in again
    table["stack.sigma"] = [3.0, 4.0, 3.0, 4.0, 5.0]
    table.write(tmp_path / "night.ecsv", overwrite=True)
    done = call(*words)
    assert done.exit_code == 3 and "rows with id 'r' differ in more than images" in done.stderr


def test_faults_are_said(night, tmp_path):
    folder, _ = night
    for inputs, code, said in (
        ("inputs.images=[]", 2, "inputs.images: 0 files; at least one is needed"),
        (f"inputs.images=['{folder}/v0.fits','{folder}/gone.fits']", 3, "gone.fits"),
    ):
        done = call("run", "stack", "--set", inputs, "-o", tmp_path / "out", "--device", "cpu")
        assert done.exit_code == code and said in done.stderr, done.output
