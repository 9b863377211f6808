# SPDX-License-Identifier: BSD-3-Clause
"""Pictures: valid PNG, row 0 at the bottom, values on the palette, NaN transparent; charts are well-formed SVG."""

import struct
import xml.etree.ElementTree as ET
import zlib

import numpy as np
import pytest

from skydelta.pipeline import pictures


def decode(data):
    """Indices (top row first), palette and transparency of an unfiltered indexed PNG, checksums verified."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(data):
        length, name = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0] == zlib.crc32(name + body)
        chunks[name] = body
        at += 12 + length
    assert name == b"IEND"
    w, h, depth, colour, *_ = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert (depth, colour) == (8, 3)
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(h, w + 1)
    assert not rows[:, 0].any()
    return rows[:, 1:], np.frombuffer(chunks[b"PLTE"], np.uint8).reshape(-1, 3), chunks[b"tRNS"]


def test_first_row_is_drawn_at_the_bottom():
    image = np.zeros((5, 7))
    image[0, 2] = 100
    pixels, palette, _ = decode(pictures.grey(image, (0, 100, 1)))
    assert pixels.shape == (5, 7)
    assert pixels[-1, 2] == 254
    assert pixels[:-1].max() == 0
    assert palette[254].tolist() == [255, 255, 255]


def test_nan_is_transparent_and_nothing_else():
    image = np.array([[0.0, np.nan], [-3.0, 3.0]])
    pixels, _, alpha = decode(pictures.diverging(image, 2.0))
    assert pixels[1, 1] == 255
    assert alpha[255] == 0
    assert set(alpha[:255]) == {255}
    assert (pixels[0, 0], pixels[0, 1], pixels[1, 0]) == (0, 254, 127)


def test_diverging_palette_is_symmetric_in_lightness_and_neutral_at_zero():
    assert pictures.DIVERGING[127].tolist() == list(pictures.MIDDLE)
    assert pictures.DIVERGING[0].tolist() == list(pictures.COLD)
    assert pictures.DIVERGING[254].tolist() == list(pictures.WARM)
    assert pictures.colour(-9) == "rgb(33,102,172)"


def test_stretch_shows_sky_and_keeps_order():
    rng = np.random.default_rng(0)
    image = rng.normal(100, 5, (64, 64))
    image[10, 10] = 5000
    low, high, soft = pictures.sky_limits(image)
    assert low == pytest.approx(90, abs=1)
    assert soft == pytest.approx(10, abs=1)
    pixels, _, _ = decode(pictures.grey(image))
    assert 20 < np.median(pixels) < 160
    assert pixels[::-1][10, 10] == 254
    assert high < 5000


@pytest.mark.parametrize("image", [np.full((4, 4), np.nan), np.zeros((4, 4)), np.full((3, 9), 7.0)])
def test_degenerate_images_still_make_a_picture(image):
    pixels, _, _ = decode(pictures.grey(image))
    assert pixels.shape == image.shape
    assert (pixels == 255).all() == np.isnan(image).all()


def test_montage_keeps_row_zero_low_and_separates():
    tiles = np.arange(4.0)[:, None, None].reshape(2, 2, 1, 1) * np.ones((1, 1, 3, 3))
    whole = pictures.montage(tiles)
    assert whole.shape == (7, 7)
    assert (whole[0, 0], whole[0, 6], whole[6, 0]) == (0, 1, 2)
    assert np.isnan(whole[3]).all()


def test_charts_are_well_formed_and_escaped():
    rng = np.random.default_rng(1)
    histogram = pictures.histogram(rng.normal(0, 1, 10000), "score & <label>", "s/n")
    points = [(10, 5, "dot", "red", "a <b>"), (20, 15, "cross", "", "c"), (1, 1, "ring", "", "d")]
    field = pictures.field((50, 100), points, 'quoted "label"')
    for svg in (histogram, field):
        root = ET.fromstring(svg)
        assert root.tag == "svg"
        assert root.attrib["aria-label"]
    circles = ET.fromstring(field).findall("circle")
    # x to the right, y upwards
    dot, ring = circles
    assert float(dot.attrib["cx"]) > float(ring.attrib["cx"])
    assert float(dot.attrib["cy"]) < float(ring.attrib["cy"])


def test_histogram_of_a_gaussian_follows_the_model_line():
    values = np.random.default_rng(2).normal(0, 1, 200000)
    svg = pictures.histogram(values, "x", "y")
    root = ET.fromstring(svg)
    area, model = (next(p for p in root.findall("path") if p.attrib["class"] == c) for c in ("area", "model"))
    top = [min(float(q.split(",")[1]) for q in p.attrib["d"].strip("MZ").split("L")) for p in (area, model)]
    assert top[0] == pytest.approx(top[1], abs=1.0)


def test_empty_histogram_is_a_chart():
    ET.fromstring(pictures.histogram(np.empty(0), "none", "s/n"))
