# SPDX-License-Identifier: BSD-3-Clause
"""Catalogues: tables with units, UCDs and named flag bits, written the same way every time."""

from __future__ import annotations

import copy
import functools
import io
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from astropy.table import Column, QTable, Table
from astropy.units import Quantity, UnitBase

from skydelta.errors import ConfigError, InputError
from skydelta.io.storage import write_bytes

FLAGS: dict[str, tuple[int, str]] = {
    "NEGATIVE": (0, "fainter than in the reference, or below the sky"),
    "DIPOLE": (1, "a positive and a negative lobe side by side"),
    "BLENDED": (2, "shares its footprint with another object"),
    "EDGE": (3, "next to the edge of the usable area"),
    "MASKED": (4, "masked pixels within the PSF core"),
    "SATURATED": (5, "saturated pixels of the science image within 1.5 FWHM"),
    "SATURATED_TEMPLATE": (6, "saturated pixels of the reference within 1.5 FWHM"),
    "LARGE": (7, "footprint far larger than the PSF"),
    "DEGENERATE": (8, "flux and separation of the lobes are not determined, only their product, the moment"),
    "AT_BOUND": (9, "a fitted position reached its bound"),
    "NOT_CONVERGED": (10, "the fit did not converge"),
    "NO_FIT": (11, "too few usable pixels to fit"),
    "TRUNCATED": (12, "an aperture, window or footprint reaches beyond the image: its flux lacks what is there"),
    "APER_MASKED": (13, "masked pixels in an aperture, window or footprint: the pixels opposite stand in for them"),
    "APER_NEIGHBOUR": (14, "pixels of another source in an aperture: the pixels opposite stand in for them"),
}
"""Flag bits of the column ``flags``, and of ``flags_*`` of one measurement: name to bit number and meaning."""

UCDS = {
    "id": "meta.id;meta.main",
    "x": "pos.cartesian.x;instr.det",
    "y": "pos.cartesian.y;instr.det",
    "ra": "pos.eq.ra;meta.main",
    "dec": "pos.eq.dec;meta.main",
    "flux": "phot.flux",
    "flux_err": "stat.error;phot.flux",
    "flux_err_kernel": "stat.error;phot.flux",
    "snr": "stat.snr",
    "model": "meta.code.class",
    "flags": "meta.code.qual",
    "x_err": "stat.error;pos.cartesian.x",
    "y_err": "stat.error;pos.cartesian.y",
    "chi2": "stat.fit.chi2",
    "dof": "stat.fit.dof",
    "background": "instr.background",
}

FORMATS = (".ecsv", ".parquet", ".vot", ".reg")

OF_ITEM = "catalog.parquet"
"""The form of an item's catalogue that is read back: ``catalog.ecsv`` beside it says the same, ten times slower."""


def bits(*names: str) -> int:
    """The value with these flags set."""
    return sum(1 << FLAGS[n][0] for n in names)


def names_of(value: int) -> list[str]:
    """The flags set in a value."""
    return [n for n, (bit, _) in FLAGS.items() if value >> bit & 1]


class Catalog(QTable):
    """A QTable of detections; columns start id, x, y, ra, dec, flux, flux_err, snr, model, flags.

    x and y are 0-based pixels of the science image, ra and dec degrees ICRS, flux in its unit.
    """

    @classmethod
    def of(
        cls,
        columns: Mapping[str, np.ndarray],
        units: Mapping[str, UnitBase],
        meta: Mapping[str, Any] | None = None,
    ) -> Catalog:
        """The table of ready columns, which it shares; the constructor, which takes anything, needs twice the time.

        Parameters
        ----------
        columns : mapping of str to (n,)
            In their order; all of one length.
        units : mapping of str to unit
            Of the columns that have one, which must be floats.
        meta : mapping, optional
            Copied one level deep.

        Raises
        ------
        ValueError
            Columns differ in length.
        """
        if len({len(values) for values in columns.values()}) > 1:
            lengths = ", ".join(f"{name} {len(values)}" for name, values in columns.items())
            raise ValueError(f"columns of different lengths: {lengths}")
        table = cls()
        for name, values in columns.items():
            if name in units:
                column = Quantity(values, units[name], copy=False)
                info = column.info
                info.name, info.parent_table = name, table
            else:
                column = Column(values, name, copy=False, copy_indices=False)
                column.parent_table = table
            table.columns[name] = column
        table.meta.update(meta or {})
        return table

    def has(self, flag: str) -> np.ndarray:
        """bool (n,): rows with this flag."""
        return (np.asarray(self["flags"]) >> FLAGS[flag][0] & 1).astype(bool)

    def described(self) -> Catalog:
        """The same table with UCDs on the columns that have one and the meaning of the flag bits in ``meta``."""
        out = self.copy()
        for name in out.colnames:
            if name in UCDS:
                out[name].info.meta = {**(out[name].info.meta or {}), "ucd": UCDS[name]}
        for name in (n for n in out.colnames if n == "flags" or n.startswith("flags_")):
            out[name].info.description = "; ".join(f"bit {b} {n}: {m}" for n, (b, m) in FLAGS.items())
        return out

    def save(self, path: str | Path) -> None:
        """Write the table; the suffix says how: .ecsv, .parquet, .vot (VOTable) or .reg (DS9 regions).

        The same table gives the same bytes. The file is whole or absent.

        Raises
        ------
        ConfigError
            Another suffix.
        InputError
            The folder is missing or cannot be written.
        """
        path = Path(path)
        writers: dict[str, Callable[[Catalog], bytes]] = {
            ".ecsv": _ecsv,
            ".parquet": _parquet,
            ".vot": _votable,
            ".reg": _regions,
        }
        if path.suffix not in writers:
            raise ConfigError(f"{path}: catalogues are written as {', '.join(FORMATS)}, not {path.suffix!r}")
        write_bytes(path, writers[path.suffix](self.described()))

    @classmethod
    def load(cls, path: str | Path) -> Catalog:
        """Read a table that `save` wrote.

        Raises
        ------
        InputError
            The file is missing or of another kind.
        """
        path = Path(path)
        try:
            if path.suffix == ".ecsv":
                return cls.read(path, format="ascii.ecsv", fill_values=[])
            if path.suffix == ".parquet":
                return _from_parquet(path)
            if path.suffix == ".vot":
                return cls(Table.read(path, format="votable"))
        except FileNotFoundError:
            raise InputError(f"{path}: no such file") from None
        except (OSError, ValueError) as e:
            said = getattr(e, "strerror", None) or e
            raise InputError(f"{path}: cannot be read as a catalogue ({said})") from None
        raise InputError(f"{path}: catalogues are read from .ecsv, .parquet and .vot, not {path.suffix!r}")

    @classmethod
    def of_file(cls, path: str | Path) -> Catalog:
        """A table of any kind that `load` or astropy reads by its suffix: .ecsv, .csv, .fits, .parquet, .vot, ...

        Raises
        ------
        InputError
            The file is missing or no table.
        """
        path = Path(path)
        if path.suffix in (".ecsv", ".parquet", ".vot"):
            return cls.load(path)
        kind = {"format": "ascii.csv"} if path.suffix == ".csv" else {}
        try:
            return cls(Table.read(path, **kind))
        except FileNotFoundError:
            raise InputError(f"{path}: no such file") from None
        except Exception as e:  # every reader has errors of its own
            said = getattr(e, "strerror", None) or (str(e).splitlines()[0] if str(e) else repr(e))
            raise InputError(f"{path}: cannot be read as a table ({said})") from None


def column_of(table: Table, name: str) -> str | None:
    """The column of a table of this name, or the first one that has it in other letter cases; None without one."""
    others = (n for n in table.colnames if n.lower() == name.lower())
    return name if name in table.colnames else next(others, None)


def _ecsv(table: Catalog) -> bytes:
    out = io.StringIO()
    table.write(out, format="ascii.ecsv")
    return out.getvalue().encode()


def _header_of(table: Catalog) -> str:
    """The ECSV header of a table: units, UCDs, descriptions, and how to read it back."""
    out = io.StringIO()
    table[:0].write(out, format="ascii.ecsv")
    return out.getvalue()


def _parquet(table: Catalog) -> bytes:
    """Parquet with the ECSV header as metadata, so that any reader gets columns and ours units and UCDs too."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays: dict[str, Any] = {}
    for name in table.colnames:
        column = table[name]
        values = np.asarray(getattr(column, "value", column))
        arrays[name] = pa.array(values.tolist() if values.dtype.kind in "SU" else values)
    arrow = pa.table(arrays).replace_schema_metadata({"skydelta_ecsv_header": _header_of(table)})
    sink = io.BytesIO()
    pq.write_table(arrow, sink, compression="zstd")
    return sink.getvalue()


def _from_parquet(path: Path) -> Catalog:
    import pyarrow.parquet as pq

    arrow = pq.read_table(path)
    header = (arrow.schema.metadata or {}).get(b"skydelta_ecsv_header")
    columns = {
        n: np.asarray(arrow[n].to_pylist() if str(arrow[n].type) == "string" else arrow[n]) for n in arrow.column_names
    }
    if header is None:
        return Catalog(columns)
    described = _of_header(header.decode())
    typed = {n: columns[n].astype(described[n].dtype if columns[n].dtype.kind not in "SUO" else str) for n in columns}
    units = {n: unit for n in described.colnames if (unit := described[n].info.unit) is not None}
    out = Catalog.of({n: typed[n] for n in described.colnames}, units, copy.deepcopy(described.meta))
    for name in out.colnames:
        out[name].info.description = described[name].info.description
        out[name].info.meta = copy.deepcopy(described[name].info.meta)
    return out


@functools.lru_cache(16)
def _of_header(header: str) -> Catalog:
    """The table without rows of an ECSV header; all items of a night have one header, which takes longer than rows."""
    return Catalog.read(header, format="ascii.ecsv")


def _votable(table: Catalog) -> bytes:
    from astropy.io.votable import from_table

    votable = from_table(Table(table))
    for field in votable.get_first_table().fields:
        field.ucd = UCDS.get(field.name)
    out = io.BytesIO()
    # astropy's C writer of rows writes a byte behind its buffer when a row fills it, so rows go through its Python one
    votable.to_xml(out, _debug_python_based_parser=True)
    # the writer names itself and its version in a comment; neither belongs to the data
    return re.sub(rb"<!--.*?-->\s*", b"", out.getvalue(), flags=re.DOTALL)


def _regions(table: Catalog) -> bytes:
    """DS9 regions: a circle on each object, red for fading ones, magenta for dipoles."""
    lines = ["# Region file format: DS9 version 4.1", "image"]
    dipole, negative = table.has("DIPOLE"), table.has("NEGATIVE")
    for i, (x, y, name) in enumerate(zip(table["x"], table["y"], table["id"], strict=True)):
        colour = "magenta" if dipole[i] else "red" if negative[i] else "green"
        # DS9 counts pixels from 1
        at = [float(getattr(v, "value", v)) + 1 for v in (x, y)]
        lines.append(f"circle({at[0]:.3f},{at[1]:.3f},8) # color={colour} text={{{name}}}")
    return ("\n".join(lines) + "\n").encode()
