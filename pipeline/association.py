# SPDX-License-Identifier: BSD-3-Clause
"""Repeated detections of one place of the sky brought together: objects, and numbers that sum up their light curves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from astropy import units as u
from scipy.spatial import cKDTree

from skydelta.io.catalog import Catalog
from skydelta.io.observation import sky_angles, unit_vectors

REACH = 2.0
"""No detection lies further than this many radii from the first one of its object."""

FRESH = 0.25
"""The tree of first detections is built again when this share of them is not in it."""


def associate(ra: np.ndarray, dec: np.ndarray, item: np.ndarray, radius: float) -> np.ndarray:
    """Number of the object that each detection belongs to.

    Items are taken one after the other. A detection joins the object whose centre, the mean of its detections so far,
    is nearest to it and within ``radius``; closest pairs first, and each object takes one detection of an item. What is
    left begins an object of its own. No detection joins an object whose first detection is more than twice the radius
    away, so objects do not grow along chains, as friends of friends would. Within an item the order of the detections
    does not matter.

    Parameters
    ----------
    ra, dec : (n,)
        Degrees; detections without a finite position belong to nothing.
    item : int (n,)
        Place of the detection's item in the order in which items are taken.
    radius : float
        Arcseconds.

    Returns
    -------
    int64 (n,)
        0, 1, ... in the order in which objects begin; -1 where there is no position.
    """
    ra, dec, item = np.asarray(ra, float), np.asarray(dec, float), np.asarray(item)
    labels = np.full(len(ra), -1)
    at = unit_vectors(ra, dec)
    rows = np.flatnonzero(np.isfinite(at).all(axis=1))
    rows = rows[np.lexsort((dec[rows], ra[rows], item[rows]))]
    chord = _chord(radius)
    firsts = _Firsts(_chord(REACH * radius))
    sums = np.zeros((len(rows), 3))
    for group in np.split(rows, np.flatnonzero(np.diff(item[rows])) + 1) if rows.size else ():
        here, objects = firsts.near(at[group])
        centres = sums[objects] / np.linalg.norm(sums[objects], axis=1, keepdims=True)
        apart = np.linalg.norm(at[group[here]] - centres, axis=1)
        taken: set[int] = set()
        for k in np.lexsort((objects, here, apart)):
            row, label = group[here[k]], int(objects[k])
            if apart[k] > chord:
                break
            if labels[row] < 0 and label not in taken:
                labels[row] = label
                taken.add(label)
        new = group[labels[group] < 0]
        labels[new] = len(firsts) + np.arange(len(new))
        firsts.add(at[new])
        np.add.at(sums, labels[group], at[group])
    return labels


def _chord(arcsec: float) -> float:
    """Distance between two unit vectors that many arcseconds apart."""
    return 2 * float(np.sin(np.radians(arcsec / 3600) / 2))


class _Firsts:
    """First detections of all objects so far, which never move: a tree of most of them, and one of the newest."""

    def __init__(self, reach: float) -> None:
        self._reach = reach
        self._all = np.empty((0, 3))
        self._trees: list[tuple[int, cKDTree]] = []

    def __len__(self) -> int:
        return len(self._all)

    def add(self, points: np.ndarray) -> None:
        if not len(points):
            return
        self._all = np.concatenate([self._all, points])
        old = self._trees[0][1].n if self._trees else 0
        if len(self._all) - old > FRESH * len(self._all):
            self._trees = [(0, cKDTree(self._all))]
        else:
            self._trees = [self._trees[0], (old, cKDTree(self._all[old:]))]

    def near(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows of ``points`` and numbers of the objects that begin within reach of them."""
        tree = cKDTree(points)
        pairs = [
            np.stack([found["i"], found["j"] + offset])
            for offset, other in self._trees
            if (found := tree.sparse_distance_matrix(other, self._reach, output_type="ndarray")).size
        ]
        rows, objects = np.concatenate(pairs, axis=1) if pairs else np.empty((2, 0), np.int64)
        return rows, objects


def names(ra: np.ndarray, dec: np.ndarray) -> list[str]:
    """Names of objects after a position: JHHMMSS.ss+DDMMSS.s, truncated as the IAU has it; -2, -3 ... where one recurs.

    Parameters
    ----------
    ra, dec : (n,)
        Degrees.
    """
    # a millionth of the last digit: a position on the edge of a digit keeps its name through a file
    time = np.floor(np.asarray(ra, float) / 15 * 360000 + 1e-6).astype(np.int64) % (24 * 360000)
    arc = np.floor(np.abs(np.asarray(dec, float)) * 36000 + 1e-6).astype(np.int64)
    counts: dict[str, int] = defaultdict(int)
    out = []
    for t, a, sign in zip(time.tolist(), arc.tolist(), np.where(np.asarray(dec) < 0, "-", "+").tolist(), strict=True):
        hours, centis = f"{t // 360000:02d}{t // 6000 % 60:02d}", t % 6000
        degrees, tenths = f"{a // 36000:02d}{a // 600 % 60:02d}", a % 600
        name = f"J{hours}{centis // 100:02d}.{centis % 100:02d}{sign}{degrees}{tenths // 10:02d}.{tenths % 10}"
        counts[name] += 1
        out.append(name if counts[name] == 1 else f"{name}-{counts[name]}")
    return out


def objects(
    catalog: Catalog, labels: np.ndarray, item: np.ndarray, mjd: np.ndarray, ids: Sequence[str]
) -> tuple[Catalog, np.ndarray]:
    """The table of objects, and the name of each detection's (empty where it belongs to none).

    Parameters
    ----------
    catalog : Catalog
        Detections with ra, dec, flux, flux_err, snr.
    labels : int (n,)
        From `associate`.
    item : int (n,)
        Place of the detection's item in time.
    mjd : (n,)
        Time of the detection; NaN where it is not known.
    ids : sequence of str
        Names of the items by place.
    """
    rows = np.flatnonzero(labels >= 0)
    rows = rows[np.lexsort((item[rows], labels[rows]))]
    group, begin, count = np.unique(labels[rows], return_index=True, return_counts=True)
    ra, dec, flux, error, snr = (_plain(catalog, c)[rows] for c in ("ra", "dec", "flux", "flux_err", "snr"))
    last = begin + count - 1
    named = names(ra[begin], dec[begin])

    def total(values: np.ndarray) -> np.ndarray:
        return np.add.reduceat(values, begin) if len(begin) else np.empty(0)

    v = unit_vectors(ra, dec)
    mean_ra, mean_dec = sky_angles(np.stack([total(c) for c in v.T], axis=-1))
    away = np.degrees(np.linalg.norm(v - np.repeat(unit_vectors(mean_ra, mean_dec), count, axis=0), axis=1)) * 3600
    # a detection whose fit gave no flux counts as a detection, not as a measurement
    measured = np.isfinite(flux) & np.isfinite(error) & (error > 0)
    n = total(measured.astype(float))
    weight = np.where(measured, 1 / np.where(measured, error, 1) ** 2, 0)
    value = np.where(measured, flux, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = total(weight * value) / total(weight)
        off = np.where(measured, value - np.repeat(mean, count), 0)
        chi2 = np.where(n > 1, total(weight * off**2) / (n - 1), np.nan)
        straight = total(value) / n
        apart = np.where(measured, value - np.repeat(straight, count), 0)
        scatter = np.where(n > 1, np.sqrt(total(apart**2) / (n - 1)), np.nan)
        mean_error = 1 / np.sqrt(total(weight))
    strength = np.where(np.isfinite(snr), np.abs(snr), -1)
    best = np.lexsort((-strength, np.repeat(np.arange(len(group)), count)))[begin] if len(begin) else begin
    places = item[rows]
    columns = {
        "object": np.array(named, str),
        "ra": mean_ra,
        "dec": mean_dec,
        "spread": np.sqrt(total(away**2) / np.maximum(count, 1)),
        "detections": count.astype(np.int64),
        "first_mjd": np.asarray(mjd, float)[rows][begin],
        "last_mjd": np.asarray(mjd, float)[rows][last],
        "first_item": np.array([ids[k] for k in places[begin]], str),
        "last_item": np.array([ids[k] for k in places[last]], str),
        "flux_mean": mean,
        "flux_mean_err": mean_error,
        "flux_peak": flux[best],
        "snr_peak": snr[best],
        "flux_std": scatter,
        "chi2_constant": chi2,
    }
    unit = getattr(catalog["flux"], "unit", None) or u.dimensionless_unscaled
    units = {"ra": u.deg, "dec": u.deg, "spread": u.arcsec, "first_mjd": u.day, "last_mjd": u.day}
    units |= dict.fromkeys(("flux_mean", "flux_mean_err", "flux_peak", "flux_std"), unit)
    out = np.full(len(labels), "", dtype=columns["object"].dtype if named else "U1")
    out[rows] = np.repeat(columns["object"], count)
    order = np.lexsort((columns["object"], mean_dec, mean_ra))
    return Catalog.of({k: c[order] for k, c in columns.items()}, units), out


def _plain(catalog: Catalog, name: str) -> np.ndarray:
    column = catalog[name]
    return np.asarray(getattr(column, "value", column), float)
