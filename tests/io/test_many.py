# SPDX-License-Identifier: BSD-3-Clause
"""A stream of exposures: the same as one by one, in order, within its memory, and without threads left behind."""

import gzip
import io
import threading
import time
import tracemalloc

import numpy as np
import pytest
from astropy.io import fits

import skydelta
from skydelta.errors import ConfigError, InputError, SkydeltaError
from skydelta.io import many
from skydelta.io.fits.reader import open_file


def image(seed, shape=(60, 80), dtype="float32"):
    return (1000 + np.random.default_rng(seed).normal(0, 10, shape)).astype(dtype)


def saved(folder, name, *hdus):
    path = folder / name
    fits.HDUList([fits.PrimaryHDU(), *hdus]).writeto(path)
    return path


@pytest.fixture
def mixed(tmp_path):
    """Files of different shapes, types, codecs and planes."""
    first, second = image(0), image(1, (33, 47))
    paths = [
        saved(tmp_path, "a.fits", fits.ImageHDU(first, name="SCI"), fits.ImageHDU(first / 10, name="VAR"),
              fits.ImageHDU((first > 1020).astype(np.int32), name="DQ")),
        saved(tmp_path, "b.fits.fz", fits.CompImageHDU(image(2, (70, 51), "uint16"), name="SCI")),
        saved(tmp_path, "c.fits", fits.ImageHDU(second, name="SCI"), fits.ImageHDU(second + 5, name="OTHER")),
        saved(tmp_path, "d.fits", fits.ImageHDU(image(3, (20, 90), "float64"))),
        tmp_path / "e.fits.gz",
    ]  # fmt: skip
    paths[4].write_bytes(gzip.compress(paths[2].read_bytes()))
    return [str(p) for p in paths]


def same(a, b):
    for name in ("image", "variance", "mask"):
        x, y = getattr(a, name), getattr(b, name)
        assert x.dtype == y.dtype
        assert np.array_equal(x, y, equal_nan=x.dtype.kind == "f"), name
    assert (a.id, a.notes, repr(a.header), a.unit) == (b.id, b.notes, repr(b.header), b.unit)


def reading_threads():
    return [t.name for t in threading.enumerate() if t.name.startswith("skydelta-read")]


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("budget", [1, 200_000, None])
@pytest.mark.parametrize("dtype", ["float32", "native"])
def test_same_as_one_by_one_in_order(mixed, depth, budget, dtype):
    wanted = [*mixed, f"{mixed[2]}[OTHER]", *mixed[::-1]]
    found = list(skydelta.read_many(wanted, depth=depth, budget=budget, device="cpu", dtype=dtype))
    assert len(found) == len(wanted)
    for path, exposure in zip(wanted, found, strict=True):
        same(exposure, skydelta.read(path, device="cpu", dtype=dtype))
    assert not reading_threads()


def test_several_hdus_of_each_file(tmp_path):
    paths = []
    for k in range(3):
        hdus = [fits.ImageHDU(image(10 * k + i, (30 + i, 40)), name=f"CCD{i}") for i in range(3)]
        paths.append(saved(tmp_path, f"{k}.fits", *hdus))
    found = list(skydelta.read_many(paths, ["CCD2", 1], device="cpu"))
    expected = [skydelta.read(p, image=h, device="cpu") for p in paths for h in ("CCD2", 1)]
    for a, b in zip(found, expected, strict=True):
        same(a, b)
    assert [e.shape for e in skydelta.read_many(paths, "CCD1", device="cpu")] == [(31, 40)] * 3


def test_bytes_and_file_objects(mixed):
    with open(mixed[0], "rb") as file:
        data = file.read()
    a, b = skydelta.read_many([data, io.BytesIO(data)], device="cpu")
    expected = skydelta.read(mixed[0], device="cpu")
    assert np.array_equal(a.image, expected.image) and np.array_equal(b.variance, expected.variance, equal_nan=True)


@pytest.mark.parametrize("budget", [1, None])
def test_errors_come_at_their_turn(mixed, tmp_path, budget):
    cut = tmp_path / "cut.fits"
    with open(mixed[0], "rb") as file:
        cut.write_bytes(file.read()[:9000])
    wanted = [mixed[0], str(cut), mixed[1], str(tmp_path / "missing.fits"), mixed[2]]
    found = list(skydelta.read_many(wanted, on_error="yield", budget=budget, depth=3, device="cpu"))
    assert [isinstance(f, SkydeltaError) for f in found] == [False, True, False, True, False]
    for i in (1, 3):
        with pytest.raises(InputError) as alone:
            skydelta.read(wanted[i], device="cpu")
        assert type(found[i]) is InputError
        assert str(found[i]) == str(alone.value)
    for i in (0, 2, 4):
        same(found[i], skydelta.read(wanted[i], device="cpu"))
    stream = skydelta.read_many(wanted, budget=budget, device="cpu")
    same(next(stream), found[0])
    with pytest.raises(InputError, match=r"cut\.fits: HDU 1 \(SCI\): data are truncated"):
        next(stream)
    assert next(stream, None) is None
    assert not reading_threads()


@pytest.mark.parametrize("budget", [1, None])
def test_leaving_early_joins_all_threads_and_closes_all_files(mixed, budget, monkeypatch):
    opened, closed = [], []
    original = many.open_file

    def watched(source):
        file = original(source)
        opened.append(file)
        close = file.close
        monkeypatch.setattr(file, "close", lambda: (closed.append(file), close())[1], raising=False)
        return file

    monkeypatch.setattr(many, "open_file", watched)
    stream = skydelta.read_many(mixed * 20, depth=3, budget=budget, device="cpu")
    next(stream)
    assert reading_threads()
    stream.close()
    assert not reading_threads()
    assert len(opened) == len(closed) < 20
    for i, _ in enumerate(skydelta.read_many(mixed * 20, depth=3, budget=budget, device="cpu")):
        if i == 2:
            break
    assert not reading_threads()


def test_files_are_taken_one_by_one(mixed):
    taken = []

    def endless():
        while True:
            taken.append(1)
            yield mixed[len(taken) % 3]

    stream = skydelta.read_many(endless(), depth=2, device="cpu")
    for _ in range(4):
        next(stream)
    assert len(taken) == 6
    stream.close()


def test_the_next_file_is_read_while_the_last_is_used(mixed, monkeypatch):
    """While the user holds a file, the reading of the next one begins."""
    original, begun = many.read, [threading.Event() for _ in mixed]
    waiting = iter(begun)

    def seen(*args, **more):
        next(waiting).set()
        return original(*args, **more)

    monkeypatch.setattr(many, "read", seen)
    held = 0
    for k, _ in enumerate(skydelta.read_many(mixed, depth=1, device="cpu")):
        held += 1
        assert all(event.wait(60) for event in begun[: k + 2])
    assert held == len(mixed)


FORMS = {
    "float32 alone": lambda a: [fits.ImageHDU(a, name="SCI")],
    "float64 with gain": lambda a: [fits.ImageHDU(a.astype("f8"), fits.Header({"GAIN": 2.0, "RDNOISE": 5.0}), "SCI")],
    "uint16": lambda a: [fits.ImageHDU(a.astype("u2"), name="SCI")],
    "all planes": lambda a: [
        fits.ImageHDU(a, name="SCI"), fits.ImageHDU(0 * a + 100, name="VAR"),
        fits.ImageHDU((0 * a).astype("i4"), name="DQ"),
    ],
    "wide planes": lambda a: [
        fits.ImageHDU(a, name="SCI"), fits.ImageHDU(0.0 * a.astype("f8") + 0.01, name="WHT"),
        fits.ImageHDU((0 * a).astype("i8"), name="DQ"),
    ],
    "components": lambda a: [
        fits.ImageHDU(a, name="SCI"), fits.ImageHDU(0 * a + 50, name="VAR_POISSON"),
        fits.ImageHDU(0 * a + 50, name="VAR_RNOISE"),
    ],
    "Rice": lambda a: [fits.CompImageHDU(a.astype("u2"), name="SCI")],
    "GZIP_2": lambda a: [fits.CompImageHDU(a, name="SCI", compression_type="GZIP_2", quantize_level=0)],
}  # fmt: skip


def peak(work):
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["float32", "native"])
def test_prediction_is_above_what_reading_takes(tmp_path, form, packed, dtype):
    path = saved(tmp_path, "a.fits", *FORMS[form](image(4, (700, 650))))
    if packed:
        path.write_bytes(gzip.compress(path.read_bytes(), 1))
    skydelta.read(path, device="cpu", dtype=dtype)
    with open_file(path) as file:
        predicted = many.predicted_bytes(file)

    def work():
        with open_file(path) as file:
            skydelta.read(file, device="cpu", dtype=dtype)

    assert peak(work) < predicted + 300_000 < 3 * 60 * 700 * 650


def test_memory_stays_within_the_budget(tmp_path):
    paths = [saved(tmp_path, f"{i}.fits", fits.ImageHDU(image(i, (700, 650)), name="SCI")) for i in range(6)]
    with open_file(paths[0]) as file:
        one = many.predicted_bytes(file)
    list(skydelta.read_many(paths, depth=6, device="cpu"))

    def use(budget):
        for _ in skydelta.read_many(paths, depth=6, budget=budget, device="cpu"):
            time.sleep(0.05)

    tight, loose = peak(lambda: use(int(1.3 * one))), peak(lambda: use(100 * one))
    assert tight < 1.3 * one + 500_000
    assert loose > 1.5 * tight


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"depth": 0}, "depth = 0"),
        ({"budget": 0}, "budget = 0"),
        ({"on_error": "ignore"}, "allowed are raise, yield"),
        ({"device": "tpu"}, "allowed are auto, cpu, cuda"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_read(options, said):
    with pytest.raises(ConfigError, match=said):
        skydelta.read_many(["a.fits"], **options)


def test_one_path_is_not_a_list():
    with pytest.raises(ConfigError, match="a list of sources is needed"):
        skydelta.read_many("a.fits")
