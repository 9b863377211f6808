# SPDX-License-Identifier: BSD-3-Clause
"""From a file, HDUs, CCDData or arrays to an Exposure: which plane is what, and what was decided on the way."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from astropy import units as u
from astropy.io import fits
from astropy.nddata import NDData

from skydelta.errors import ConfigError, InputError
from skydelta.io import variance as variances
from skydelta.io.arrays import POWERS, plane_of, unit_factor
from skydelta.io.draft import UNCERTAINTIES, Draft, of_array, of_nddata
from skydelta.io.exposure import Exposure
from skydelta.io.fits.cards import number, text
from skydelta.io.fits.checksum import Checks
from skydelta.io.fits.layout import Hdu
from skydelta.io.fits.pixels import Flags, Section
from skydelta.io.fits.reader import (
    FitsFile,
    InMemory,
    Source,
    open_file,
    role,
    section_text,
    split_extension,
    split_section,
)
from skydelta.io.header import check_flux, unit_of, user_cards
from skydelta.io.kernelerror import stored_error
from skydelta.io.planes import MaskPlanes, decode_mask
from skydelta.io.psf import Psf, psf_from_hdu, psf_from_stamp
from skydelta.io.routes import summary
from skydelta.io.wcs import celestial_wcs
from skydelta.kernels.backend import CPU, Array, Backend, backend_of, resolve, to_host
from skydelta.kernels.core.devices import active
from skydelta.kernels.judge import mark_unknown

log = logging.getLogger(__name__)

GAIN_CARDS = ("GAIN", "EGAIN", "CCDGAIN", "EFFGAIN")
NOISE_CARDS = ("RDNOISE", "READNOIS", "READNOISE", "RON", "ENOISE")
SATURATION_CARDS = ("ESATUR", "TSATUR", "SATURATE", "SATURAT", "SATLEVEL", "SATUR_LEVEL")
"""Effective levels (of the image as it is, after its sky was subtracted) come before those of the detector."""

SKY_CHI2 = (0.5, 2.0)
"""Measured over stated sky variance outside which the plane is doubted."""

PLATEAU = 5
"""An integer image whose largest value occurs this often, far above its sky, was cut off there."""

Plane = str | Path | np.ndarray | None


def read(
    source: Any,
    *,
    image: str | int | None = None,
    variance: Plane = None,
    sigma: Plane = None,
    weight: Plane = None,
    mask: Plane = None,
    psf: Any = None,
    dtype: Literal["float32", "native"] = "float32",
    gain: float | None = None,
    read_noise: float | None = None,
    saturation: float | None = None,
    checksum: Literal["warn", "error", "ignore"] = "warn",
    device: str = "auto",
) -> Exposure:
    """Read an image with everything that belongs to its pixels.

    Parameters
    ----------
    source : str, Path, bytes, file object, HDU, HDUList, CCDData, NDData, array (H, W), (array, header) or Exposure
        Of arrays the mask of a masked one and the unit of a Quantity are kept.
        A path or http(s) URL may name an HDU: ``file.fits[SCI]``, ``file.fits[1]``. Bytes and binary file objects
        hold a whole file. A file opened by `skydelta.open` is taken too, and left open. A part of an image is
        ``file.fits[SCI][x1:x2,y1:y2]``, written as FITS tools do (first pixel 1, ends included): only the rows or
        tiles that it touches are read, of every plane of the file, and ``origin`` says where it was.
    image : str or int, optional
        HDU name (``SCI``, ``SCI,2``) or number; by rule SCI or IMAGE, else the first two-dimensional image.
    variance, sigma, weight : path or array, optional
        One of them: variance, standard deviation (squared here), or inverse variance (inverted; 0 is no data), as
        ``FILE``, ``FILE[EXT]`` or an array. By rule from VAR, ERR, UNCERT (by UTYPE), VAR_POISSON + VAR_RNOISE + ...,
        WHT of the same file, else estimated (`skydelta.io.variance.estimate`).
    mask : path or array, optional
        By rule from DQ or MASK of the same file; conventions as in `skydelta.io.planes.decode_mask`.
    psf : path, array (h, w) or Psf, optional
        By rule from a PSF extension of the same file.
    dtype : {"float32", "native"}
        native keeps integers and float64 of the image; a variance is float32 in any case, a mask int32.
    gain, read_noise : float, optional
        Electrons per unit of the pixels, electrons; before the cards of the header.
    saturation : float, optional
        Level in the unit of the pixels; before the cards of the header.
    checksum : {"warn", "error", "ignore"}
        What is done when DATASUM or CHECKSUM of an HDU do not hold: a warning that is noted, or an InputError. HDUs
        that are read whole are verified; of parts, and of the other HDUs of the file, the headers.
    device : str
        auto, cpu, cuda or cuda:N.

    Returns
    -------
    Exposure
        ``notes`` says where each plane came from, the bytes read by each route, and what was odd; pixels that are
        NaN, BLANK or without a valid variance carry NO_DATA.

    Raises
    ------
    InputError
        The file cannot be read, has no two-dimensional image, or planes have other shapes than the image.
    ConfigError
        Contradicting or unknown arguments.
    """
    given = {k: v for k, v in (("variance", variance), ("sigma", sigma), ("weight", weight)) if v is not None}
    if len(given) > 1:
        raise ConfigError(f"read: {' and '.join(given)} are given; one of them is allowed")
    if dtype not in ("float32", "native"):
        raise ConfigError(f"read: dtype {dtype!r}; allowed are float32, native")
    idle = [name for name, value in (("gain", gain), ("read_noise", read_noise)) if given and value is not None]
    if idle:
        raise ConfigError(f"read: {idle[0]} has no effect where {next(iter(given))} is given")
    checks = Checks(checksum)
    backend = resolve(device)
    if isinstance(source, Exposure):
        return source.to(backend)
    with ExitStack() as stack:
        stack.enter_context(active(backend))
        if isinstance(source, NDData):
            draft = of_nddata(source, dtype)
            given = given or {k: draft.stated[k] for k in UNCERTAINTIES.values() if k in draft.stated}
            psf = draft.stated.get("psf") if psf is None else psf
        else:
            draft = _open(source, image, dtype, backend, stack, checks)
        mask = draft.stated.get("mask") if mask is None else mask
        draft.checks = checks
        return _complete(draft, given, mask, psf, gain, read_noise, saturation, stack).to(backend)


def _open(
    source: Any,
    image: str | int | None,
    dtype: Literal["float32", "native"],
    backend: Backend,
    stack: ExitStack,
    checks: Checks,
) -> Draft:
    """The image and its header."""
    section: Section | None = None
    if isinstance(source, tuple) and len(source) == 2:
        return of_array(source[0], source[1], dtype)
    if isinstance(source, FitsFile):
        opened: Source = source
    elif isinstance(source, str | Path):
        whole, section = split_section(str(source))
        path, extension = split_extension(whole)
        if extension is not None and image is not None and str(image) != extension:
            raise ConfigError(f"read: {source} names HDU {extension!r}, image= names {image!r}; one is allowed")
        opened = stack.enter_context(open_file(path))
        image = extension if extension is not None else image
    elif isinstance(source, fits.HDUList):
        opened = InMemory(source)
    elif isinstance(source, fits.PrimaryHDU | fits.ImageHDU | fits.CompImageHDU):
        opened = InMemory(fits.HDUList([source]))
    elif isinstance(source, bytes | bytearray | memoryview) or hasattr(source, "read"):
        opened = stack.enter_context(open_file(source))
    elif hasattr(source, "ndim") and hasattr(source, "dtype"):
        return of_array(source, fits.Header(), dtype)
    else:
        raise ConfigError(
            f"read: {type(source).__name__} cannot be read; a path, URL, bytes, file object, HDU, HDUList, CCDData, "
            "array or Exposure is needed"
        )
    hdu = opened.image(image)
    flags = Flags(MaskPlanes().bit("NO_DATA"))
    if section is not None and len(hdu.shape) == 2 and any(s.stop > n for s, n in zip(section, hdu.shape, strict=True)):
        raise opened.error(hdu, f"section {section_text(section)} of {hdu.shape[1]} x {hdu.shape[0]} px")
    place = backend if isinstance(opened, FitsFile) else CPU
    header, decoded, odd = opened.read(hdu, dtype, section, flags, place, checks)
    draft = Draft(decoded, opened.keywords(hdu, header), flags, opened, hdu, place=place, section=section)
    draft.opened.append(opened)
    draft.warnings += [*opened.oddities, *odd]
    draft.notes["image"] = {
        "file": Path(opened.label).name,
        "hdu": hdu.index,
        "name": hdu.name,
        "type": flags.native,
    }
    if section is not None:
        draft.notes["image"]["section"] = section_text(section)
    if hdu.compression:
        draft.notes["image"]["compression"] = hdu.compression
    alike = [h for h in opened.hdus if h.is_image and role(h) == "image" and h is not hdu]
    if image is None and role(hdu) == "image" and alike:
        draft.warnings.append(f"{len(alike) + 1} science images in the file; {hdu.label} was taken")
    return draft


def _complete(
    draft: Draft,
    given: dict[str, Any],
    mask: Any,
    psf: Any,
    gain: float | None,
    read_noise: float | None,
    saturation: float | None,
    stack: ExitStack,
) -> Exposure:
    pixels = draft.pixels
    unit, odd_unit = unit_of(draft.header)
    check_flux(unit, draft.label)
    if draft.flags.infinite:
        draft.warnings.append(_infinite(draft))
    _attach_mask(draft, mask, stack)
    if pixels.dtype.kind == "f":
        draft.notes["mask"]["missing_pixels"] = draft.flags.missing
    _mark_saturation(draft, saturation)
    found = _variance(draft, pixels, given, gain, read_noise, stack)
    if found.note["kind"] != "estimated":
        for name in (n for n, value in (("gain", gain), ("read_noise", read_noise)) if value is not None):
            draft.warnings.append(f"{name} is not used: the variance is that of {found.note['source']}")
    good, usable = mark_unknown(found.values, draft.mask, draft.planes.bit("NO_DATA"), draft.planes.invalid)
    if beyond := found.note.get("invalid", {}).get("out_of_range"):
        draft.warnings.append(
            f"{beyond} pixels of the variance from {found.note['source']} (read as {found.note['kind']}) are beyond "
            f"float32 ({variances.FLOAT32}) and masked"
        )
    if found.note["kind"] != "estimated":
        _doubt(draft, pixels, found, good)
    draft.notes["variance"] = found.note
    draft.notes["mask"]["usable_fraction"] = usable / good.size
    if not usable:
        draft.warnings.append(_why_unusable(found))
    if odd_unit:
        draft.warnings.append(f"BUNIT = {odd_unit!r} is not understood; the image has no unit")
    wcs = _wcs(draft)
    attached = _psf(draft, psf, stack)
    error = None
    if draft.source is not None and draft.hdu is not None and role(draft.hdu) == "image":
        error = stored_error(draft.source, draft.frame, draft.section, draft.place, draft.checks)
    for opened in draft.opened:
        opened.judge(draft.checks)
    counted = [s.counted for s in draft.opened if isinstance(s, FitsFile) and s.counted is not None]
    if counted:
        draft.notes["read"] = summary(counted)
        draft.notes["checksum"] = draft.checks.note()
    for line in (warned := list(dict.fromkeys(draft.warnings))):
        of_file = draft.source if draft.source and line in draft.source.oddities else None  # names its own HDU
        log.warning("%s: %s", of_file.label if of_file else draft.label, line)
    if warned or draft.checks.wrong:
        draft.notes["warnings"] = [*draft.checks.wrong, *warned]
    return Exposure(
        pixels,
        found.values,
        draft.mask,
        draft.planes,
        wcs,
        attached,
        unit,
        user_cards(draft.header),
        draft.corner,
        id=Path(draft.source.label).name if draft.source is not None else "",
        notes=draft.notes,
        kernel_error=error,
    )


def _infinite(draft: Draft) -> str:
    """How many pixels are infinite. So are numbers beyond float32; the pass that decodes does not tell them apart."""
    if draft.pixels.dtype == np.float32 and draft.flags.native == "float64":
        return (
            f"{draft.flags.infinite} pixels that are infinite or beyond float32 (3.4e38) are masked; "
            'dtype="native" keeps those that are finite'
        )
    return f"{draft.flags.infinite} infinite pixels are masked"


class _Found(NamedTuple):
    """A plane at the draft's place; ``own``: nobody else has its memory; ``unit``: of its HDU, not of the primary's."""

    pixels: Array
    header: fits.Header
    name: str
    own: bool
    unit: u.UnitBase | None = None


def _plane(draft: Draft, kind: str, given: Any, stack: ExitStack) -> _Found:
    """A plane given as array, ``FILE`` or ``FILE[EXT]``; its shape must be the image's."""
    if not isinstance(given, str | Path):
        whole = plane_of(given, kind, unit_of(draft.header)[0], draft.label)
        _same_shape(draft, kind, "array", whole.shape)
        part = whole if draft.section is None else whole[draft.section]
        native = part.astype(part.dtype.newbyteorder("="), copy=False)
        return _Found(draft.place.asarray(native), fits.Header(), "array", own=False)
    path, extension = split_extension(str(given))
    source = stack.enter_context(open_file(path))
    draft.opened.append(source)
    hdu = source.image(extension) if extension is not None else _companion_file(source, kind, draft)
    name = f"{Path(path).name} {hdu.label}"
    _same_shape(draft, kind, name, hdu.shape)
    header, pixels, odd = source.read(hdu, section=draft.section, backend=draft.place, checks=draft.checks)
    source.judge(draft.checks)
    draft.warnings += [f"{kind}: {line}" for line in [*source.oddities, *odd]]
    return _Found(pixels, source.keywords(hdu, header), name, own=True, unit=unit_of(header)[0])


def _companion_file(source: Source, kind: str, draft: Draft) -> Hdu:
    """In a file that holds one plane: the HDU of that role, else of the image's name, else the only rule there is."""
    roles = {"weight": ("weight",), "sigma": ("sigma", "uncertainty"), "variance": ("variance", "uncertainty")}
    for wanted in roles.get(kind, (kind,)):
        if draft.hdu is not None and (hdu := source.companion(wanted, draft.hdu)) is not None:
            return hdu
    if draft.hdu is not None and draft.hdu.name:
        for hdu in source.hdus:
            if hdu.is_image and hdu.name == draft.hdu.name:
                return hdu
    return source.image()


def _same_shape(draft: Draft, kind: str, name: str, shape: tuple[int, ...]) -> None:
    if shape != draft.frame:
        raise InputError(f"{draft.label}: {kind} ({name}) has shape {shape}, the image {draft.frame}")


def _beside(draft: Draft, kind: str) -> _Found | None:
    """The plane of a role in the image's own file."""
    if draft.source is None or draft.hdu is None:
        return None
    hdu = draft.source.companion(kind, draft.hdu)
    if hdu is None or 0 in (hdu.shape or (0,)):
        return None
    if hdu.fault is None:
        _same_shape(draft, kind, hdu.label, hdu.shape)
    header, pixels, odd = draft.source.read(hdu, section=draft.section, backend=draft.place, checks=draft.checks)
    draft.warnings += [f"{hdu.label}: {line}" for line in odd]
    own = isinstance(draft.source, FitsFile)  # other pixels are those of the caller's HDU
    return _Found(pixels, draft.source.keywords(hdu, header), hdu.label, own, unit_of(header)[0])


def _attach_mask(draft: Draft, given: Any, stack: ExitStack) -> None:
    found = _plane(draft, "mask", given, stack) if given is not None else _beside(draft, "mask")
    if found is None:
        draft.notes["mask"] = {"source": "none"}
        return
    try:
        decoded = decode_mask(found.pixels, found.header)
    except InputError as e:
        raise InputError(f"{draft.label}: mask ({found.name}): {e}", **e.numbers) from None
    draft.planes = decoded.planes
    # core planes, and NO_DATA with them, have the same bits in every mask
    draft.flags.mask |= decoded.mask
    draft.warnings += decoded.notes
    draft.has_saturation = decoded.convention != "non-zero is BAD"
    draft.notes["mask"] = {"source": found.name, "convention": decoded.convention}


def _mark_saturation(draft: Draft, level: float | None) -> None:
    """SAT where the image reaches the level, when no mask says it."""
    if draft.has_saturation:
        draft.notes["saturation"] = {"source": "mask"}
        if level is not None:
            draft.warnings.append(f"saturation = {level:g} is not used: the mask says which pixels are saturated")
        return
    source = "argument"
    if level is None:
        level, source = _saturation_card(draft)
    if level is None:
        level, source = _plateau(draft), "largest value of the image"
    if level is None:
        draft.notes["saturation"] = {"source": "none"}
        return
    with np.errstate(invalid="ignore"):
        reached = draft.pixels >= level
    pixels = int(reached.sum())
    if pixels:
        draft.flags.mask |= reached * np.int32(draft.planes.bit("SAT"))
    draft.notes["saturation"] = {"source": source, "level": float(level), "pixels": pixels}


def _saturation_card(draft: Draft) -> tuple[float | None, str]:
    for card in SATURATION_CARDS:
        level = _number(draft, card)
        if level is not None:
            return level, card
    amplifiers = [v for c in ("SATURATA", "SATURATB") if (v := _number(draft, c)) is not None]
    return (min(amplifiers), "SATURATA, SATURATB") if amplifiers else (None, "")


def _plateau(draft: Draft) -> float | None:
    """The largest value of an image of integers, if it is far above the median and occurs often."""
    if np.dtype(draft.flags.native).kind not in "ui":
        return None
    pixels, xp = draft.pixels, draft.place.xp
    top = float(pixels.max())
    if top <= 1000 or int(xp.count_nonzero(pixels == top)) < PLATEAU:
        return None
    # counting says the same as the median, unless the middle lies between two pixels
    below = int(xp.count_nonzero(pixels < top / 4))
    far = 2 * below > pixels.size if 2 * below != pixels.size else top > 4 * float(xp.median(pixels))
    return top if far else None


def _variance(
    draft: Draft,
    pixels: Array,
    given: dict[str, Any],
    gain: float | None,
    read_noise: float | None,
    stack: ExitStack,
) -> variances.Variance:
    for kind, plane in given.items():
        return _stated(draft, kind, _plane(draft, kind, plane, stack))
    for kind in ("variance", "sigma", "uncertainty", "variance component", "weight"):
        found = _beside(draft, kind)
        if found is None:
            continue
        if kind == "uncertainty":
            written = text(found.header, "UTYPE") or "StdDevUncertainty"
            if written not in UNCERTAINTIES:
                raise InputError(
                    f"{draft.label}: {found.name}: UTYPE = {written!r}; allowed: {', '.join(UNCERTAINTIES)}"
                )
            return _stated(draft, UNCERTAINTIES[written], found, f", UTYPE {written}")
        if kind == "variance component" and draft.source is not None:
            values, name = _sum_of_components(draft, draft.source)  # in the unit of the image
            return variances.from_plane(values, "variance", name)
        return _stated(draft, kind, found)
    good = (draft.mask & np.int32(draft.planes.invalid)) == 0
    detector = _detector(draft, gain, read_noise)
    usable = int(draft.place.xp.count_nonzero(good))
    if usable >= 16:
        try:
            return variances.estimate(pixels, good, detector)
        except InputError as e:
            draft.warnings.append(str(e))
    else:
        draft.warnings.append(f"{usable} usable pixels: no variance can be estimated")
    nothing = draft.place.xp.full(pixels.shape, np.nan, np.float32)
    return variances.Variance(nothing, {"source": "none", "kind": "none", "usable_pixels": usable})


def _stated(draft: Draft, kind: str, found: _Found, more: str = "") -> variances.Variance:
    """The variance that a plane says, in the unit of the image."""
    factor = _factor(draft, kind, found.unit, found.name)
    values = found.pixels if factor == 1 else found.pixels * np.float64(factor)
    return variances.from_plane(values, kind, f"{found.name}{more}", found.own or factor != 1)


def _factor(draft: Draft, kind: str, own: u.UnitBase | None, name: str) -> float:
    """What brings a plane of a file to the unit of the image; 1 where either has none.

    Weights in another unit are taken as they are, with a warning, as is a variance in the unit of the image itself: its
    header was copied from the image's by many programs.
    """
    unit = unit_of(draft.header)[0]
    if own is None or unit is None or own == u.dimensionless_unscaled:
        return 1.0
    try:
        return unit_factor(own, kind, unit, f"{draft.label}: {name}")
    except InputError:
        if kind != "weight" and not (kind == "variance" and own == unit):
            raise
    draft.warnings.append(f"{name}: {kind} is in {own}, the image in {unit}; taken as {unit ** POWERS[kind]}")
    return 1.0


def _sum_of_components(draft: Draft, source: Source) -> tuple[Array, str]:
    total, names = draft.place.xp.zeros(draft.pixels.shape), []
    for hdu in source.hdus:
        if role(hdu) == "variance component" and draft.hdu is not None and hdu.version == draft.hdu.version:
            if hdu.fault is None:
                _same_shape(draft, "variance", hdu.label, hdu.shape)
            header, values, _ = source.read(hdu, section=draft.section, backend=draft.place, checks=draft.checks)
            total += values * np.float64(_factor(draft, "variance", unit_of(header)[0], hdu.label))
            names.append(hdu.name)
    return total, " + ".join(names)


def _detector(draft: Draft, gain: float | None, read_noise: float | None) -> variances.Detector:
    def first(given: float | None, cards: tuple[str, ...], pair: tuple[str, str]) -> float | None:
        if given is not None:
            return given
        for card in cards:
            value = _number(draft, card)
            if value is not None and value > 0:
                return value
        both = [v for c in pair if (v := _number(draft, c)) is not None and v > 0]
        return float(np.mean(both)) if both else None

    for name, value in (("gain", gain), ("read_noise", read_noise)):
        if value is not None and not (np.isfinite(value) and value > 0):
            raise ConfigError(f"read: {name} = {value}; a positive number is needed")
    return variances.Detector(
        first(gain, GAIN_CARDS, ("GAINA", "GAINB")),
        first(read_noise, NOISE_CARDS, ("RDNOISEA", "RDNOISEB")),
        _number(draft, "BIASLVL") or 0.0,
        max(int(_number(draft, "NCOMBINE") or 1), 1),
    )


def _number(draft: Draft, card: str) -> float | None:
    """A card as a finite number; one that is not is left aside with a warning."""
    if card not in draft.header:
        return None
    try:
        value = number(draft.header, card, float("nan"))
    except InputError as e:
        draft.warnings.append(f"{e}; the card is left aside")
        return None
    return value if np.isfinite(value) else None


def _why_unusable(found: variances.Variance) -> str:
    """Why no pixel is left: no variance, a stated plane that is one nowhere, or masks and missing pixels."""
    if found.note.get("usable_pixels"):
        return "no usable pixel: none has a variance; give a variance, or a gain"
    if found.note["kind"] in ("estimated", "none") or bool(backend_of(found.values).xp.isfinite(found.values).any()):
        return "no usable pixel: all are masked"
    return (
        f"no usable pixel: the variance from {found.note['source']} (read as {found.note['kind']}) has no finite "
        "positive value"
    )


def _doubt(draft: Draft, pixels: Array, found: variances.Variance, good: Array) -> None:
    """Compare a stated variance with the noise of the image; a wrong kind of plane shows here."""
    ratio = variances.sky_chi2(pixels, found.values, good)
    found.note["sky_chi2"] = ratio
    if ratio is not None and not SKY_CHI2[0] <= ratio <= SKY_CHI2[1]:
        draft.warnings.append(
            f"sky noise is {ratio:.3g} times the variance from {found.note['source']} (read as {found.note['kind']}); "
            f"{SKY_CHI2[0]} to {SKY_CHI2[1]} are expected"
        )


def _wcs(draft: Draft) -> Any:
    if "wcs" in draft.stated:
        draft.notes["wcs"] = "given"
        return draft.stated["wcs"]
    tables = draft.source.astropy if draft.source is not None else None
    try:
        wcs, said = celestial_wcs(draft.header, tables, draft.frame)
    except InputError as e:
        wcs, said = None, [str(e)]
        draft.warnings.append(str(e))
    if wcs is not None:
        draft.warnings += said
        said = [", ".join(wcs.wcs.ctype)]
        wcs = wcs if draft.section is None else wcs.slice(draft.section)
    draft.notes["wcs"] = "; ".join(said)
    return wcs


def _psf(draft: Draft, given: Any, stack: ExitStack) -> Psf | None:
    shape = draft.frame
    if isinstance(given, Psf):
        draft.notes["psf"] = {"source": "given"}
        return given
    if given is None:
        if draft.source is None or draft.hdu is None:
            return None
        hdu = draft.source.companion("psf", draft.hdu)
        source: Source | None = draft.source if hdu is not None else None
    elif isinstance(given, str | Path):
        path, extension = split_extension(str(given))
        source = stack.enter_context(open_file(path))
        draft.opened.append(source)
        hdu = source.find(extension) if extension is not None else None
        hdu = hdu or next((h for h in source.hdus if role(h) == "psf"), None) or source.image()
    else:
        stamp, said = psf_from_stamp(to_host(given), shape)
        draft.notes["psf"] = {"source": "array", **said}
        return stamp.moved(*draft.corner)
    if source is None or hdu is None:
        return None
    header, pixels, _ = source.read(hdu, checks=draft.checks)
    try:
        made, said = psf_from_hdu(pixels, header, shape)
    except InputError as e:
        raise source.error(hdu, f"PSF: {e}") from None
    draft.notes["psf"] = {"source": f"{Path(source.label).name} {hdu.label}", **said}
    return made.moved(*draft.corner)
