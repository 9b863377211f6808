# SPDX-License-Identifier: BSD-3-Clause
"""A chain load, match, write on small images with faults built in; a plug-in that worker processes find too.

``SKYDELTA_TEST_FAULTS`` names a JSON file: ``{"dir": FOLDER, "faults": {"ITEM STAGE": KIND}}``. A KIND that ends with
``_once`` strikes the first time only, whoever is struck: a file in FOLDER remembers. ``hang`` leaves the file
``reached`` there and goes on when it is removed or after some seconds.
"""

import errno
import json
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
from pydantic import Field

from skydelta.errors import AlgorithmError
from skydelta.io import storage
from skydelta.io.exposure import Exposure
from skydelta.io.fits.writer import write
from skydelta.kernels.backend import CPU
from skydelta.kernels.core.devices import DeviceSet
from skydelta.kernels.core.multi import map_tiles
from skydelta.kernels.core.tiles import TileGrid
from skydelta.stages.base import Port, Stage, StageConfig
from skydelta.stages.load import Load

VARIABLE = "SKYDELTA_TEST_FAULTS"
PATIENCE = 6.0


def strike(item, stage):
    """What is to happen to this item here, once found marked as happened."""
    path = os.environ.get(VARIABLE)
    if not path:
        return "", None
    plan = json.loads(Path(path).read_text())
    kind = plan["faults"].get(f"{item} {stage}", "")
    folder = Path(plan["dir"])
    if kind.endswith("_once"):
        kind = kind.removesuffix("_once")
        try:
            (folder / f"struck-{item}-{stage}").touch(exist_ok=False)
        except FileExistsError:
            kind = ""
    return kind, folder


_armed = threading.local()
_preadv = os.preadv


def preadv_or_fail(*args):
    """Reads as the system does, but for a thread whose storage fails."""
    if getattr(_armed, "fails", False):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    return _preadv(*args)


def trip(ctx, stage):
    """Let the fault of this item and stage happen."""
    kind, folder = strike(ctx.id, stage)
    if kind == "full":
        fill(ctx)
    if kind == "raise":
        raise ZeroDivisionError(f"built into {stage}")
    if kind == "algorithm":
        raise AlgorithmError(f"no stars in {stage}", stars=0)
    if kind == "memory" or (kind == "memory on device" and ctx.backend.is_gpu):
        raise MemoryError("12 GiB")
    if kind == "little memory on device" and ctx.backend.is_gpu:
        with_little_memory()
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "read":
        os.preadv, _armed.fails = preadv_or_fail, True
        try:
            storage._File(Path(__file__)).read_into(0, np.zeros(10, np.uint8))
        finally:
            _armed.fails = False
    if kind == "hang":
        reached = folder / "reached"
        reached.touch()
        end = time.monotonic() + PATIENCE
        while reached.exists() and time.monotonic() < end:
            time.sleep(0.02)
    return kind


class FaultLoad(Load):
    """The stage load, with faults."""

    name = "fault_load"

    def run(self, ctx, *, path):
        trip(ctx, "load")
        return super().run(ctx, path=path)


class MatchConfig(StageConfig):
    """How it is matched."""

    factor: float = Field(1.0, description="Of the reference.")


class FaultMatch(Stage[MatchConfig]):
    """Science minus a factor times the reference."""

    name = "fault_match"
    inputs = {"science": Port(Exposure), "reference": Port(Exposure)}
    outputs = {"difference": Port(Exposure)}

    def run(self, ctx, *, science, reference):
        trip(ctx, "match")
        image = science.image - np.float32(self.config.factor) * reference.image
        ctx.metric("noise_ratio", float(image.std()))
        return {"difference": Exposure(image)}


class FaultWrite(Stage[StageConfig]):
    """The difference into the folder of the item, in two files."""

    name = "fault_write"
    inputs = {"difference": Port(Exposure)}
    outputs = {"files": Port(list)}

    def run(self, ctx, *, difference):
        write(difference, ctx.out / "first.fits")
        trip(ctx, "write")
        write(difference, ctx.out / "second.fits")
        return {"files": []}


def with_little_memory():
    """Work in tiles of which the device holds a quarter."""

    def function(tile, cut):
        if cut.size > 64 * 64:
            raise MemoryError("12 GiB")
        return cut[tile.inner]

    image = np.arange(128 * 128, dtype=np.float32).reshape(128, 128)
    assert (map_tiles(function, [image], TileGrid(image.shape, 128), DeviceSet.of(CPU)) == image).all()


_full = set()
_write = os.write


def write_or_fail(fd, data):
    """Writes as the system does, but not into folders whose disk is full."""
    if _full and any(item in os.readlink(f"/proc/self/fd/{fd}") for item in tuple(_full)):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return _write(fd, data)


def fill(ctx):
    """From now on the disk takes nothing for this attempt, neither products nor a receipt."""
    _full.add(f"/{ctx.out.name}/")
    os.write = write_or_fail
    write(Exposure(np.zeros((8, 8), np.float32)), ctx.out / "anything.fits")


STAGES = {s.name: f"support_faults:{s.__name__}" for s in (FaultLoad, FaultMatch, FaultWrite)}

WORKFLOW = """
version = 1
name = "faults"
[[steps]]
id = "science"
stage = "load"
inputs = { path = "science" }
[[steps]]
id = "load"
stage = "fault_load"
inputs = { path = "reference" }
[[steps]]
id = "match"
stage = "fault_match"
[[steps]]
id = "write"
stage = "fault_write"
"""


def install(folder):
    """Make a plug-in of this module that Python finds in ``folder``, as pip would."""
    info = Path(folder) / "skydelta_faults-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: skydelta-faults\nVersion: 0\n")
    lines = "".join(f"{name} = {target}\n" for name, target in STAGES.items())
    (info / "entry_points.txt").write_text(f"[skydelta.stages]\n{lines}")
