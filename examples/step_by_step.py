# SPDX-License-Identifier: BSD-3-Clause
"""The main job stage by stage, on two simulated exposures: ``python step_by_step.py [FOLDER]``."""

import sys
from pathlib import Path

import skydelta

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "step-by-step")
truth = skydelta.simulate(folder, overwrite=True, size=512, seed=1)

# every stage is a function: inputs by position or name, settings by keyword
science = skydelta.background(skydelta.read(truth.science))
reference = skydelta.background(skydelta.read(truth.reference))
reference = skydelta.align(reference, onto=science)
science = skydelta.psf(science)["image"]
reference = skydelta.psf(reference)["image"]
kernel = skydelta.match(science, reference)
products = skydelta.difference(science, reference, kernel)
found = skydelta.detect(products["difference"], products["score"], threshold=6)
catalog = skydelta.fit(products["whitened"], found)

catalog.save(folder / "catalog.ecsv")
skydelta.write(products["difference"], folder / "difference.fits")
catalog["id", "x", "y", "flux", "flux_err", "snr", "model"].pprint(max_lines=-1, max_width=-1)
