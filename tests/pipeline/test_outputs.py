# SPDX-License-Identifier: BSD-3-Clause
"""What commands write and say at their edges: outputs that cannot be, missing files, interruptions, exit codes."""

import errno
import os
import warnings
from pathlib import Path

import numpy as np
import pytest
from astropy.io import fits
from astropy.table import Table

import skydelta as package
from skydelta.errors import ConfigError
from skydelta.io import storage
from skydelta.pipeline.receipts import RunFolder

# inputs that are not there either: what is said of the output is said before they are looked for
COMMANDS = {
    "align": ("none.fits", "--onto", "none.fits", "-o"),
    "detect": ("none.fits", "-o"),
    "register": ("none.fits", "--onto", "none.fits", "-o"),
    "stack": ("none.fits", "-o"),
    "difference": ("none.fits", "none.fits", "--device", "cpu", "-o"),
    "run": ("difference", "--science", "none.fits", "--reference", "none.fits", "--device", "cpu", "-o"),
    "simulate": (),
}
SUFFIX = dict.fromkeys(("align", "register", "stack"), ".fits") | {"detect": ".ecsv"}
"""Of commands that write a file; the others write into a folder, which they make."""


def where(command, place):
    name = f"out{SUFFIX.get(command, '')}"
    if place == "a folder":
        Path(name).mkdir()
    return name if place in ("a folder", "read-only", "closed") else f"{place}/{name}"


PLACES = {
    "nowhere": errno.ENOENT,
    "file": errno.ENOTDIR,
    "a folder": errno.EISDIR,
    "closed": errno.EACCES,
    "read-only": errno.EROFS,
}


@pytest.mark.parametrize(
    ("command", "place"),
    [(c, p) for c in COMMANDS for p in PLACES if c in SUFFIX or p not in ("nowhere", "a folder")],
)
def test_an_output_that_cannot_be_is_found_before_any_work(skydelta, tmp_path, monkeypatch, command, place):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("skydelta.pipeline.simulate.build", None)
    Path("file").write_text("")
    number = PLACES[place]
    if place in ("read-only", "closed"):  # who runs tests may write anywhere

        def refuse(*_, **__):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(storage.tempfile, "mkstemp", refuse)
    out = where(command, place)
    before = sorted(tmp_path.rglob("*"))
    result = skydelta(command, *COMMANDS[command], out)
    assert result.stderr == f"skydelta: {out}: cannot be written: {os.strerror(number)}\n"
    assert result.exit_code == 3
    assert sorted(tmp_path.rglob("*")) == before
    if command in ("difference", "run"):
        plan = skydelta(command, *COMMANDS[command], out, "--dry-run")
        assert f"problem: {out}: cannot be written: {os.strerror(number)}" in plan.stderr
        assert plan.exit_code == 3


@pytest.mark.parametrize("command", SUFFIX)
def test_an_output_that_is_there_is_found_before_any_work(skydelta, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    out = where(command, "read-only")
    Path(out).write_text("precious")
    result = skydelta(command, *COMMANDS[command], out)
    assert (result.exit_code, result.stderr) == (2, f"skydelta: {out}: is there already; --overwrite replaces it\n")
    assert skydelta(command, *COMMANDS[command], out, "--overwrite").stderr == "skydelta: none.fits: no such file\n"
    assert Path(out).read_text() == "precious"


def test_every_file_of_a_command_is_checked(skydelta, tmp_path, monkeypatch):
    """Second outputs, a folder of catalogues, the scratch folder, the file for Prometheus, a report."""
    monkeypatch.chdir(tmp_path)
    Path("cat/catalog.parquet").mkdir(parents=True)
    Path("run.json").write_text("{}")
    Path("report.html").mkdir()
    for words, said in (
        (("register", *COMMANDS["register"], "a.fits", "--onto-out", "no/b.fits"), "no/b.fits"),
        (("detect", "none.fits", "-o", "cat"), "cat/catalog.parquet"),
        (("stack", "none.fits", "-o", "a.fits", "--scratch", "no"), "no/scratch"),
        (("run", *COMMANDS["run"], "out", "--prometheus", "no/x.prom"), f"{tmp_path}/no/x.prom"),
        (("report", "."), "report.html"),
    ):
        result = skydelta(*words)
        assert result.exit_code == 3
        assert result.stderr.startswith(f"skydelta: {said}: cannot be written: "), result.stderr
        assert result.stderr.count("\n") == 1
    assert not Path("out").exists()


def state(folder):
    """Everything of the paths in a folder but the time of the last reading: to look at them changes that."""
    seen = {p: p.lstat() for p in folder.rglob("*")}
    return {p: (s.st_ino, s.st_mode, s.st_nlink, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for p, s in seen.items()}


def test_checks_of_outputs_leave_everything_as_it_was(tmp_path):
    (tmp_path / "there").write_text("x")
    (tmp_path / "link").symlink_to("there")
    before = state(tmp_path)
    storage.check_writable(tmp_path / "there")
    storage.check_writable(tmp_path / "link")
    storage.check_folder(tmp_path / "a/b/c")
    storage.check_folder(tmp_path)
    assert state(tmp_path) == before


REFUSED = {
    "foreign": ((), "data: not empty and no run; choose another folder, or --overwrite"),
    "options": (("--workers", "2"), "run.workers: serial has no such option; threads and dask have"),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("there", [True, False])
def test_a_run_that_is_refused_leaves_the_folder_as_it_was(skydelta, sums, kind, there):
    words, said = REFUSED[kind]
    if kind == "foreign" or there:
        Path("data").mkdir()
    if kind == "foreign":
        Path("data/precious").write_text("x")
    before = sorted(sums.rglob("*"))
    command = ("run", "sum.toml", "--set", "inputs.a='1'", "--set", "inputs.b='2'", "--device", "cpu", "-o", "data")
    result = skydelta(*command, *words)
    assert (result.exit_code, result.stderr) == (2, f"skydelta: {said}\n")
    assert sorted(sums.rglob("*")) == before
    if kind == "foreign":
        assert skydelta(*command, "--dry-run").stderr.endswith(f"problem: {said}\n")
    else:
        assert skydelta(*command).exit_code == 0, "the folder is still free"


def test_a_lock_that_was_taken_away_meanwhile_is_none(tmp_path, monkeypatch):
    """Somebody opens the lock of a run that is refused then: the file that is locked must be the one that is there."""
    folder, whole, opened = RunFolder(tmp_path), RunFolder._held, []

    def late(self, lock, path):
        opened.append(lock)
        if len(opened) == 1:
            path.unlink()
        return whole(self, lock, path)

    monkeypatch.setattr(RunFolder, "_held", late)
    with folder.locked():
        assert len(opened) == 2
        assert opened[0].closed
        monkeypatch.undo()
        with pytest.raises(ConfigError, match="another process is running"), RunFolder(tmp_path).locked():
            pass
        assert (tmp_path / ".lock").exists()
    assert not (tmp_path / ".lock").exists(), "no run was begun"


def test_an_interruption_says_what_the_same_command_does(skydelta, sums, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    run = ("run", "sum.toml", "--set", "inputs.a='6'", "--set", "inputs.b='8'", "--device", "cpu", "-o", "run")
    said = {(*run,): "the same command", (*run, "--overwrite"): "the same command without --overwrite"}
    said = {words: f"{again} goes on where it stopped" for words, again in said.items()}
    for command, suffix in SUFFIX.items():
        said[command, *COMMANDS[command], f"a{suffix}"] = "no file is half written; the same command starts anew"
    monkeypatch.setattr("skydelta.io.read.read", stop)
    monkeypatch.setattr("skydelta.stages.align.grids.grid_of", stop)
    monkeypatch.setattr("skydelta.stages.stack.Stack.run", stop)
    for words, sentence in said.items():
        result = skydelta(*words)
        assert (result.exit_code, result.stderr) == (130, f"skydelta: interrupted; {sentence}\n")


MISSING = {
    "image": ("detect", "none.fits", "-o", "o.ecsv"),
    "positions .csv": ("detect", "sci", "--positions", "none.csv", "-o", "o.ecsv"),
    "positions .ecsv": ("detect", "sci", "--positions", "none.ecsv", "-o", "o.ecsv"),
    "positions .fits": ("detect", "sci", "--positions", "none.fits", "-o", "o.ecsv"),
    "cards": ("align", "sci", "--onto", "none.hdr", "-o", "o.fits"),
    "grid": ("align", "sci", "--onto", "none.fits", "-o", "o.fits"),
    "mask": ("align", "sci", "--mask", "none.fits", "--onto", "ref", "-o", "o.fits"),
    "reference catalogue": ("register", "sci", "--onto", "none.ecsv", "-o", "o.fits"),
    "stack": ("stack", "sci", "none.fits", "-o", "o.fits"),
    "table of items": ("run", "difference", "--set", "inputs.table=none.csv", "-o", "out"),
    "inspect": ("inspect", "none.fits"),
}


@pytest.mark.parametrize("kind", MISSING)
def test_a_missing_file_is_said_in_plain_words(skydelta, simulated, tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    files = {"sci": simulated.science, "ref": simulated.reference}
    result = skydelta(*(files.get(w, w) for w in MISSING[kind]))
    (name,) = (w for w in MISSING[kind] if "none." in w)
    name = name.partition("=")[2] or name
    assert result.exit_code == 3
    assert result.stderr.endswith(f"{name}: no such file\n")
    assert result.stderr.count("\n") == 1


def test_images_without_wcs_are_told_what_helps_on_the_command_line(skydelta, simulated, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for role in ("science", "reference"):
        fits.PrimaryHDU(fits.getdata(getattr(simulated, role), "SCI")).writeto(f"{role}.fits")
    pair = ("science.fits", "reference.fits")
    for words in (("difference", *pair, "-o", "out", "--device", "cpu"), ("stack", *pair, "-o", "o.fits")):
        result = skydelta(*words)
        assert result.exit_code == 3
        assert "no celestial WCS" in result.stderr
        assert "--aligned of difference and stack" in result.stderr
        assert "=True" not in result.stderr
        assert "--aligned" in skydelta(words[0], "--help").stdout


def test_no_foreign_warning_reaches_the_terminal(skydelta, simulated, tmp_path, monkeypatch):
    """Of the files that `simulate` writes and of those made from them; an own mask has a name as long as names are."""
    monkeypatch.chdir(tmp_path)
    mask = f"{'long' * 14}.fits"
    fits.PrimaryHDU(np.zeros((320, 320), np.uint8)).writeto(mask)
    pair = (simulated.science, simulated.reference)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for words in (
            ("align", simulated.reference, "--onto", simulated.science, "--mask", mask, "-o", "aligned.fits"),
            ("stack", *pair, "-o", "stack.fits"),
            ("detect", "stack.fits", "-o", "sources.ecsv"),
            ("register", "aligned.fits", "--onto", simulated.science, "-o", "registered.fits"),
            ("inspect", *pair, "aligned.fits", "stack.fits", "registered.fits"),
        ):
            result = skydelta(*words)
            assert (result.exit_code, result.stderr) == (0, ""), words
    with fits.open("stack.fits") as hdus:
        comment = hdus["SCI"].header.comments["GAIN"]
    assert comment == "electrons per unit, where all images count", "whole, not cut"


@pytest.mark.parametrize(
    ("value", "comment"),
    [(3.25e-200, "c" * 60), ("t" * 60, "c" * 30), ("t" * 68, "c"), ("it's " * 13, "word " * 9), (True, "c" * 70)],
    ids=str,
)
def test_comments_of_cards_are_cut_without_a_word(tmp_path, rng, value, comment):
    header = fits.Header([("KEY", 1), ("LAST", 2)])
    header["KEY"] = (value, comment)
    image = package.Exposure(rng.normal(size=(4, 4)).astype(np.float32), header=header)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        package.write(image, tmp_path / "a.fits")
    found = fits.getheader(tmp_path / "a.fits", 1)
    assert found["KEY"] == (value.rstrip() if isinstance(value, str) else value)
    assert comment.startswith(found.comments["KEY"])
    assert len(found.comments["KEY"]) >= 80 - 10 - max(20, len(repr(value)) + 2) - 3 - 1
    assert found["LAST"] == 2


CODES = {
    "an option that is none": (2, ("detect", "sci", "-o", "o.ecsv", "--colour", "red")),
    "a setting out of range": (2, ("difference", "sci", "ref", "-o", "out", "--set", "steps.match.order=9")),
    "a folder in use": (2, ("difference", "sci", "ref", "-o", ".")),
    "no such file": (3, ("inspect", "none.fits")),
    "no run": (3, ("report", ".")),
    "a plan with a problem": (3, ("check", "difference", "--science", "none.fits", "--reference", "ref")),
    "another field": (3, ("align", "elsewhere", "--onto", "sci", "-o", "o.fits")),
    "a pair of other fields": (3, ("difference", "sci", "elsewhere", "-o", "out")),
    "misaligned": (3, ("difference", "sci", "shifted", "-o", "out")),
    "no stars to register by": (4, ("register", "blank", "--onto", "sci", "-o", "o.fits")),
    "no stars to match by": (4, ("difference", "blank", "blank", "-o", "out")),
    "one of two items": (1, ("run", "difference", "--set", "inputs.table=two.csv", "-o", "out")),
    "both of two items": (3, ("run", "difference", "--set", "inputs.table=none.csv", "-o", "out")),
    "no such device": (5, ("detect", "sci", "-o", "o.ecsv", "--device", "cuda:7")),
}


@pytest.fixture(scope="module")
def variants(simulated, tmp_path_factory):
    """Paths by name: the pair; the reference elsewhere, and 5 px off by its WCS; an image without a star."""
    folder = tmp_path_factory.mktemp("variants")
    found = {"sci": simulated.science, "ref": simulated.reference}

    def blank(hdu):
        if hdu.name == "SCI":
            hdu.data[:] = np.random.default_rng(1).normal(100, np.sqrt(100), hdu.shape)
        elif hdu.name == "VAR":
            hdu.data[:] = 100

    changes = {"elsewhere": ("CRVAL1", 20), "shifted": ("CRPIX1", 5), "blank": (None, blank)}
    for name, (card, change) in changes.items():
        with fits.open(simulated.reference) as hdus:
            for hdu in hdus[1:]:
                if card is None:
                    change(hdu)
                else:
                    hdu.header[card] += change
            found[name] = folder / f"{name}.fits"
            hdus.writeto(found[name])
    return found


@pytest.mark.parametrize("kind", CODES)
def test_exit_codes_are_those_of_the_docs(skydelta, variants, tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    code, words = CODES[kind]
    for table, names in (("two.csv", ("sci", "none")), ("none.csv", ("none", "none"))):
        rows = [(f"i{n}", str(variants.get(name, "none.fits")), str(variants["ref"])) for n, name in enumerate(names)]
        Table(rows=rows, names=("id", "science", "reference")).write(table, format="ascii.csv")
    result = skydelta(*(variants.get(w, w) for w in words))
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
