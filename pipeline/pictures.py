# SPDX-License-Identifier: BSD-3-Clause
"""Pictures and small charts for the report: PNG bytes and SVG text from arrays, with nothing but zlib.

Row 0 of an array is the lowest row of its picture, as astronomers draw images and as the FITS pixel order suggests.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterable, Sequence
from html import escape

import numpy as np

LEVELS = 255
"""Colours of a palette; index 255 is kept for pixels without a value, which are transparent."""

COLD, MIDDLE, WARM = (33, 102, 172), (247, 247, 247), (178, 24, 43)
"""Ends and middle of the diverging map: blue is negative, red positive; told apart with any colour vision."""

GREY = np.repeat(np.rint(np.linspace(0, 255, LEVELS)).astype(np.uint8)[:, None], 3, axis=1)
"""Palette from black to white: uint8 (255, 3)."""


def _diverging() -> np.ndarray:
    t = np.linspace(-1, 1, LEVELS)[:, None]
    ends = np.where(t < 0, COLD, WARM)
    return np.rint(np.array(MIDDLE) + (ends - MIDDLE) * np.abs(t) ** 0.8).astype(np.uint8)


DIVERGING = _diverging()
"""Palette from blue through near-white to red: uint8 (255, 3)."""


def png(indices: np.ndarray, palette: np.ndarray) -> bytes:
    """An indexed PNG file.

    Parameters
    ----------
    indices : uint8 (H, W)
        Row 0 is drawn at the bottom; 255 is transparent.
    palette : uint8 (255, 3)
    """
    h, w = indices.shape
    rows = np.zeros((h, w + 1), np.uint8)  # each row starts with its filter number, 0
    rows[:, 1:] = indices[::-1]
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", w, h, 8, 3, 0, 0, 0)),
        (b"PLTE", palette.astype(np.uint8).tobytes() + bytes(3)),
        (b"tRNS", bytes([255]) * LEVELS + bytes(1)),
        (b"IDAT", zlib.compress(rows.tobytes(), 9)),
        (b"IEND", b""),
    )
    chunks = (struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def data_uri(data: bytes, kind: str = "image/png") -> str:
    """A ``data:`` address that needs no file and no network."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def robust_std(values: np.ndarray) -> float:
    """1.4826 times the median absolute deviation of the finite values; NaN if there are none."""
    values = values[np.isfinite(values)]
    return float(1.4826 * np.median(np.abs(values - np.median(values)))) if values.size else float("nan")


def sky_limits(image: np.ndarray) -> tuple[float, float, float]:
    """Black level, white level and softening of an asinh stretch that shows sky noise and bright cores alike.

    Black is two robust standard deviations below the median, the stretch turns logarithmic two above it, white is the
    99.8th percentile, but at least eight above it.
    """
    values = image[np.isfinite(image)]
    if not values.size:
        return 0.0, 1.0, 1.0
    middle = float(np.median(values))
    spread = robust_std(values) or float(np.std(values)) or 1.0
    return middle - 2 * spread, max(float(np.percentile(values, 99.8)), middle + 8 * spread), 2 * spread


def grey(image: np.ndarray, limits: tuple[float, float, float] | None = None) -> bytes:
    """PNG of an image, asinh-stretched from black to white.

    Parameters
    ----------
    image : (H, W)
        NaN is transparent.
    limits : (float, float, float), optional
        Black, white, softening, as `sky_limits`, which is the default.
    """
    low, high, soft = limits or sky_limits(image)
    t = np.arcsinh((np.asarray(image, float) - low) / soft) / np.arcsinh((high - low) / soft)
    return png(_indices(t), GREY)


def diverging(image: np.ndarray, limit: float) -> bytes:
    """PNG of a signed image: -limit is blue, 0 nearly white, +limit red; NaN is transparent."""
    return png(_indices(0.5 + np.asarray(image, float) / (2 * limit)), DIVERGING)


def _indices(t: np.ndarray) -> np.ndarray:
    scaled = np.clip(np.nan_to_num(t), 0, 1) * (LEVELS - 1)
    return np.where(np.isfinite(t), np.rint(scaled), LEVELS).astype(np.uint8)


def montage(tiles: np.ndarray, gap: int = 1) -> np.ndarray:
    """(ny, nx, h, w) stamps as one picture, row 0 at the bottom, NaN between them: (ny (h + gap) - gap, ...)."""
    ny, nx, h, w = tiles.shape
    out = np.full((ny * (h + gap) - gap, nx * (w + gap) - gap), np.nan)
    for j in range(ny):
        for i in range(nx):
            out[j * (h + gap) : j * (h + gap) + h, i * (w + gap) : i * (w + gap) + w] = tiles[j, i]
    return out


def colour(t: float) -> str:
    """CSS colour of the diverging palette at t in [-1, 1]; values beyond are clipped."""
    r, g, b = DIVERGING[int(np.rint((np.clip(t, -1, 1) + 1) / 2 * (LEVELS - 1)))]
    return f"rgb({r},{g},{b})"


WIDTH, HEIGHT = 340, 250
LEFT, RIGHT, TOP, BOTTOM = 40, 8, 8, 34


class _Axes:
    """Maps data to the drawing area of one chart and draws its frame."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float]) -> None:
        self.x, self.y = x, y

    def place(self, x: float, y: float) -> tuple[float, float]:
        u = (x - self.x[0]) / (self.x[1] - self.x[0])
        v = (y - self.y[0]) / (self.y[1] - self.y[0])
        return LEFT + u * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - v * (HEIGHT - TOP - BOTTOM)

    def path(self, points: Iterable[tuple[float, float]]) -> str:
        return "M" + "L".join(f"{px:.1f},{py:.1f}" for px, py in (self.place(*p) for p in points))

    def frame(self, x_ticks: Sequence[tuple[float, str]], y_ticks: Sequence[tuple[float, str]], x_name: str) -> str:
        out = []
        for value, text in x_ticks:
            px, py = self.place(value, self.y[0])
            out.append(f'<path class="tick" d="M{px:.1f},{py:.1f}v4"/>')
            out.append(f'<text x="{px:.1f}" y="{py + 14:.1f}" text-anchor="middle">{escape(text)}</text>')
        for value, text in y_ticks:
            px, py = self.place(self.x[0], value)
            out.append(f'<path class="grid" d="M{px:.1f},{py:.1f}H{WIDTH - RIGHT}"/>')
            out.append(f'<text x="{px - 5:.1f}" y="{py + 3.5:.1f}" text-anchor="end">{escape(text)}</text>')
        out.append(f'<path class="axis" d="M{LEFT},{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>')
        middle = (LEFT + WIDTH - RIGHT) / 2
        out.append(f'<text x="{middle}" y="{HEIGHT - 4}" text-anchor="middle">{escape(x_name)}</text>')
        return "".join(out)


def _svg(body: str, label: str, height: float = HEIGHT) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(label, quote=True)}">'
        f"<title>{escape(label)}</title>{body}</svg>"
    )


def histogram(values: np.ndarray, label: str, name: str, reach: float = 8.0) -> str:
    """SVG histogram of values on a logarithmic scale against the unit Gaussian.

    Parameters
    ----------
    values : (n,)
        Finite; those beyond ``reach`` are counted in the outermost bins.
    label : str
        What the chart shows, for readers who cannot see it.
    name : str
        Of the horizontal axis.
    """
    edges = np.linspace(-reach, reach, 65)
    centres, width = (edges[1:] + edges[:-1]) / 2, edges[1] - edges[0]
    n = max(values.size, 1)
    density = np.histogram(np.clip(values, -reach, reach), edges)[0] / (n * width)
    floor = 0.5 / (n * width)
    axes = _Axes((-reach, reach), (np.log10(floor), 0.0))
    steps = [p for e0, e1, d in zip(edges, edges[1:], density, strict=False) for p in ((e0, d), (e1, d))]
    line = [(x, np.log10(max(d, floor))) for x, d in steps]
    gauss = np.log10(np.exp(-0.5 * centres**2) / np.sqrt(2 * np.pi))
    model = [(x, g) for x, g in zip(centres, gauss, strict=True) if g > np.log10(floor)]
    decades = range(int(np.ceil(np.log10(floor))), 1)
    every = max(1, len(decades) // 4)
    body = axes.frame(
        [(t, f"{t:g}") for t in np.arange(-reach, reach + 1, 4)],
        [(d, f"1e{d}" if d else "1") for d in decades if d % every == 0],
        name,
    )
    area = axes.path([(-reach, np.log10(floor)), *line, (reach, np.log10(floor))])
    body += f'<path class="area" d="{area}Z"/>'
    if model:
        body += f'<path class="model" d="{axes.path(model)}"/>'
    return _svg(body, label)


def field(
    shape: tuple[int, int],
    points: Iterable[tuple[float, float, str, str, str]],
    label: str,
) -> str:
    """SVG map of points on the field, in the field's own proportions.

    Parameters
    ----------
    shape : (int, int)
        Height and width of the image, px.
    points : iterable of (x, y, mark, fill, tooltip)
        ``mark`` is ``dot``, ``ring`` or ``cross``; ``fill`` a CSS colour, empty for the text colour.
    """
    h, w = shape
    scale = (WIDTH - 2) / w
    high = h * scale
    out = [f'<rect class="field" x="1" y="1" width="{WIDTH - 2}" height="{high:.1f}"/>']
    for x, y, mark, fill, tooltip in points:
        px, py = 1 + (x + 0.5) * scale, 1 + high - (y + 0.5) * scale
        style = f' style="--c:{fill}"' if fill else ""
        title = f"<title>{escape(tooltip)}</title>"
        if mark == "cross":
            out.append(f'<path class="cross"{style} d="M{px - 4:.1f},{py - 4:.1f}l8,8m0,-8l-8,8">{title}</path>')
        else:
            out.append(f'<circle class="{mark}"{style} cx="{px:.1f}" cy="{py:.1f}" r="4">{title}</circle>')
    return _svg("".join(out), label, high + 2)


def scatter(
    points: Sequence[tuple[float, float, str, str]],
    label: str,
    x_name: str,
    level: float | None = None,
    flip: bool = False,
) -> str:
    """SVG of points; empty without one that is finite.

    Parameters
    ----------
    points : sequence of (x, y, fill, tooltip)
        ``fill`` is a CSS colour, empty for the accent; points that are not finite are left out.
    label, x_name : str
        What the chart shows, for readers who cannot see it; name of the horizontal axis.
    level : float, optional
        A line across, the value that is right.
    flip : bool
        x grows to the left, as right ascension does.
    """
    kept = [p for p in points if np.isfinite(p[0]) and np.isfinite(p[1])]
    if not kept:
        return ""
    x = _range([p[0] for p in kept])
    y = _range([p[1] for p in kept] + ([] if level is None else [level]))
    axes = _Axes((x[1], x[0]) if flip else x, y)
    ticks = [[(float(t), f"{t:.{_digits(b - a)}f}") for t in np.linspace(a, b, 5)[1:4]] for a, b in (x, y)]
    body = axes.frame(ticks[0], ticks[1], x_name)
    if level is not None:
        body += f'<path class="model" d="{axes.path([(x[0], level), (x[1], level)])}"/>'
    for px, py, fill, tooltip in kept:
        cx, cy = axes.place(px, py)
        style = f' style="--c:{fill}"' if fill else ""
        title = f"<title>{escape(tooltip)}</title>"
        body += f'<circle class="dot"{style} cx="{cx:.1f}" cy="{cy:.1f}" r="3.5">{title}</circle>'
    return _svg(body, label)


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return low - margin, high + margin


def _digits(span: float) -> int:
    """Decimals that tell ticks of this span apart."""
    return int(np.clip(2 - np.floor(np.log10(span)), 0, 6))
