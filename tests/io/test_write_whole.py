# SPDX-License-Identifier: BSD-3-Clause
"""A file under its name is whole, whatever stops the process that writes it."""

import errno
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from astropy.io import fits

import skydelta
from skydelta.errors import InputError
from skydelta.io import storage
from skydelta.io.exposure import Exposure
from skydelta.io.fits.writer import write

ROOT = Path(__file__).resolve().parents[2]

_FOREVER = """
import sys
import numpy as np
from skydelta.io.exposure import Exposure
from skydelta.io.fits.writer import write
rng = np.random.default_rng(1)
image = rng.normal(100, 3, (1500, 1000)).astype(np.float32)
number = 0
while True:
    number += 1
    for name, compression in (("plain.fits", None), ("rice.fits", "RICE_1")):
        mask = np.full(image.shape, number, np.int32)
        write(Exposure(image + np.float32(number), mask=mask), f"{sys.argv[1]}/{name}", compression)
    print(number, flush=True)
"""

_ONCE = """
import resource
import sys
import tempfile
from pathlib import Path
import numpy as np
from skydelta.errors import InputError
from skydelta.io.exposure import Exposure
from skydelta.io.fits.writer import write
image = np.random.default_rng(1).normal(100, 3, (500, 400)).astype(np.float32)
kinds = None, "RICE_1", "GZIP_2"
# the kernels are compiled, and kept in files, before the limit on files
with tempfile.TemporaryDirectory() as folder:
    for compression in kinds:
        write(Exposure(image[:20, :20]), Path(folder, "e.fits"), compression)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000,) * 2)
for compression in kinds:
    try:
        write(Exposure(image), sys.argv[1], compression)
    except InputError as e:
        print(e)
"""

_UNPRIVILEGED = """
import os
import sys
from pathlib import Path
from skydelta.errors import InputError
from skydelta.io.storage import write_bytes
if os.getuid() == 0:
    os.setuid(65534)
try:
    write_bytes(Path(sys.argv[1]), b"new")
except InputError as e:
    sys.exit(str(e))
"""


def child(code, *arguments, **options):
    """A Python process that has the package."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], env=env, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
    )  # fmt: skip


def assert_whole(path):
    """Checksums of all HDUs; every pixel of both images from one call of the writer."""
    with fits.open(path, checksum=True, disable_image_compression=True) as h:
        for hdu in h:
            assert hdu.verify_checksum() == 1
            assert hdu.verify_datasum() == 1
    with fits.open(path) as h:
        number = np.unique(h["DQ"].data)
        assert len(number) == 1
        assert abs(h["SCI"].data.mean() - 100 - number[0]) < 0.1


@pytest.mark.slow
def test_killed_while_it_writes(tmp_path):
    rng = np.random.default_rng(8)
    for _ in range(4):
        with child(_FOREVER, tmp_path) as process:
            assert process.stdout.readline().strip() == "1"  # compiled and both written once
            time.sleep(rng.uniform(0, 0.3))
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        assert sorted(p.name for p in tmp_path.iterdir() if not p.name.startswith(".")) == ["plain.fits", "rice.fits"]
        for name in ("plain.fits", "rice.fits"):
            assert_whole(tmp_path / name)


def test_no_room(tmp_path):
    target = tmp_path / "e.fits"
    target.write_bytes(b"old")
    process = child(_ONCE, target)
    said, trouble = process.communicate(timeout=120)
    assert (process.returncode, trouble) == (0, "")
    assert said == 3 * f"{target}: cannot be written: {os.strerror(errno.EFBIG)}\n", "plain, RICE_1, GZIP_2"
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["e.fits"]


@pytest.mark.parametrize(
    ("name", "why"), [("x" * 300 + ".fits", os.strerror(errno.ENAMETOOLONG)), ("a\0b.fits", "embedded null byte")]
)
def test_a_name_that_no_file_can_have(tmp_path, name, why):
    path = tmp_path / name
    with pytest.raises(InputError) as said:
        write(Exposure(np.zeros((9, 9), np.float32)), path)
    assert str(said.value) == f"{path}: cannot be written: {why}"
    for source in (path, f"{path}[SCI]"):
        with pytest.raises(InputError) as said:
            skydelta.read(source)
        assert f"cannot be opened: {why}" in str(said.value)


@pytest.mark.parametrize("above", (0o755, 0o700), ids=("cannot be written", "cannot be entered"))
def test_a_folder_that_cannot_be_written(above):
    """As a user without rights: root may write anywhere. Behind a closed folder even a look at the path is refused."""
    with tempfile.TemporaryDirectory() as name:
        parent = Path(name)
        folder = parent / "closed"
        folder.mkdir()
        folder.chmod(0o555)
        parent.chmod(above)
        _refused_by_its_folder(folder)


def _refused_by_its_folder(folder):
    process = child(_UNPRIVILEGED, folder / "e.fits")
    _, said = process.communicate(timeout=120)
    assert said == f"{folder / 'e.fits'}: cannot be written: {os.strerror(errno.EACCES)}\n"
    assert not list(folder.iterdir())


def test_file_and_folder_are_flushed_around_the_rename(tmp_path, monkeypatch):
    done = []
    fsync, replace = os.fsync, os.replace

    def watched(fd):
        done.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file")
        fsync(fd)

    def renamed(a, b):
        done.append("rename")
        replace(a, b)

    monkeypatch.setattr(os, "fsync", watched)
    monkeypatch.setattr(os, "replace", renamed)
    write(Exposure(np.zeros((3, 4), np.float32)), tmp_path / "e.fits")
    assert done == ["file", "rename", "folder"]


def test_short_writes_are_continued(tmp_path, monkeypatch):
    whole = os.write
    monkeypatch.setattr(os, "write", lambda fd, part: whole(fd, part[: max(1, len(part) // 3)]))
    data = np.random.default_rng(0).integers(0, 256, 100_001, np.uint8)
    storage.write_bytes(tmp_path / "x", b"head", b"", data)
    assert (tmp_path / "x").read_bytes() == b"head" + data.tobytes()


def test_a_folder_that_cannot_be_flushed_is_no_failure(tmp_path, monkeypatch):
    fsync = os.fsync

    def refuse(fd):
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(fd)

    monkeypatch.setattr(os, "fsync", refuse)
    storage.write_bytes(tmp_path / "x", b"1")
    assert (tmp_path / "x").read_bytes() == b"1"
