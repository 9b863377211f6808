# SPDX-License-Identifier: BSD-3-Clause
"""Every file of the shared collection gives what its table demands: these pixels, a warning, or a readable error."""

import json
import subprocess
import sys

import numpy as np
import pytest
from astropy.io import fits

from skydelta.errors import InputError
from skydelta.io.fits.reader import inspect, open_file
from skydelta.io.read import read

# file: {HDU: (dtype, shape, sum of finite pixels, count of NaN)}
VALUES = {
    "real/GalSim__test_multiF.fits.fz": {
        1: ("float32", (5, 7), 1505, 0), 2: ("float32", (5, 7), 1540, 0), 12: ("float32", (5, 7), 1890, 0),
    },
    "real/afw__HSC-0908120-056-small.fits": {
        1: ("float32", (200, 200), 346002.4408, 0), 2: ("uint16", (200, 200), 176064, 0),
    },
    "real/afw__ZPN.fits": {1: ("float32", (10, 10), 0, 0), 2: ("uint16", (10, 10), 0, 0)},
    "real/afw__test_amp.fits.gz": {0: ("uint16", (58, 125), 131955, 0)},
    "real/afw__ticketdm26260.fits": {0: ("float32", (512, 512), 6447394, 0)},
    "real/afw__ticketdm26260.fits.fz": {1: ("float32", (512, 512), 6447394, 0)},
    "real/astropy__arange.fits": {0: ("int32", (7, 10, 11), 296056, 0)},
    "real/astropy__blank.fits": {0: ("float64", (1, 1), 0, 1)},
    "real/astropy__compressed_float_bzero.fits": {1: ("uint16", (3,), 6, 0)},
    "real/astropy__compressed_image.fits": {1: ("int16", (10, 10), 4950, 0)},
    "real/astropy__compressed_with_nan.fits": {1: ("float64", (12, 12), 10283.48254, 1)},
    "real/astropy__dist_lookup.fits.gz": {
        1: ("float32", (100, 100), 977642.8835, 0), 2: ("float32", (1, 4096), -3.079134811, 0),
        3: ("float32", (33, 65), 1.063372438, 0), 4: ("float32", (33, 65), -0.01815617978, 0),
    },
    "real/astropy__dss.14.29.56-62.41.05.fits.gz": {0: ("int16", (100, 100), 51011936, 0)},
    "real/astropy__fixed-1890.fits": {0: ("uint16", (100, 100), 18900000, 0)},
    "real/astropy__lzw.fits.Z": {0: ("int16", (101, 101), 676039, 0)},
    "real/astropy__m13.fits": {0: ("int16", (300, 300), 13293397, 0)},
    "real/astropy__m13_gzip.fits": {1: ("int16", (300, 300), 13293397, 0)},
    "real/astropy__m13_hcomp.fits": {1: ("int16", (300, 300), 13293397, 0)},
    "real/astropy__m13_plio.fits": {1: ("int16", (300, 300), 13293397, 0)},
    "real/astropy__m13_rice.fits": {1: ("int16", (300, 300), 13293397, 0)},
    "real/ccdproc__a8280271.fits": {0: ("uint16", (520, 536), 82501207, 0)},
    "real/fitsio__test_rice_dither2_seed42.fits": {0: ("float64", (100, 100), -28.81467658, 0)},
    "real/fitsio__test_rice_dither2_seed42.fits.fz": {1: ("float64", (100, 100), -28.81467658, 0)},
    "real/ip_diffim__scienceMI.fits": {
        1: ("float32", (193, 193), 88861, 0), 2: ("uint16", (193, 193), 0, 0),
        3: ("float32", (193, 193), 3814899.999, 0),
    },
    "real/ip_diffim__templateMI.fits": {1: ("float32", (193, 193), 89999.99873, 0)},
    "real/legacypipe__c4d_150411_035242_ooi_z_v1-N10.fits": {1: ("float32", (150, 150), 81943431.94, 0)},
    "real/legacypipe__c4d_170316_062107_ood_z_ls9.N2.fits": {1: ("int32", (251, 245), 885, 0)},
    "real/legacypipe__c4d_170316_062107_ooi_z_ls9.N2.fits": {1: ("float32", (251, 245), 195300557.8, 0)},
    "real/legacypipe__c4d_170316_062107_oow_z_ls9.N2.fits": {1: ("float32", (251, 245), 76.21178661, 0)},
    "real/legacypipe__k4m_160319_075112_oow_zd_ls9.CCD3.fits": {1: ("float32", (208, 204), 76247.46476, 0)},
    "real/nom-tam-fits__test.fits.bz2": {0: ("int16", (5, 5), 300, 0)},
    "real/nom-tam-fits__test_dup.fits": {0: ("int16", (5, 5), 300, 0)},
    "real/reproject__secchi_l0_a.fits": {0: ("float64", (128, 128), 28672998, 0)},
    "synthetic/bscale_fortran_D.fits": {0: ("float32", (40, 50), 65522124.5, 0)},
    "synthetic/c_i32_highentropy.fits": {1: ("int32", (60, 70), -5.30436169e10, 0)},
    "synthetic/c_nocompress.fits": {1: ("int16", (60, 70), 4198244, 0)},
    "synthetic/c_rice_f32_d1_nan.fits": {1: ("float32", (60, 70), -27.343016, 71)},
    "synthetic/c_rice_i16_ztile_edge.fits": {1: ("int16", (60, 70), 4198244, 0)},
    "synthetic/int8_bzero_m128.fits": {0: ("int8", (40, 50), -1743, 0)},
    "synthetic/naxis1_1d.fits": {0: ("int16", (2000,), -111004, 0)},
    "synthetic/neg_bscale.fits": {0: ("float32", (40, 50), 230774.75, 123)},
    "synthetic/simple_F.fits": {0: ("int16", (40, 50), -111004, 0)},
    "synthetic/tpv_sip.fits": {0: ("int16", (40, 50), -111004, 0)},
}  # fmt: skip

# file: words that the error of read() must hold
ERRORS = {
    "real/SAOImageDS9__mif1.fits": ["no image HDU", "EVENTS table"],
    "real/afw__multi_extension_metadata.fits": ["no image HDU with pixel data", "EXTRA_IM", "EXTRA_TAB"],
    "real/astropy__arange.fits": ["(7, 10, 11)", "3 dimensions"],
    "real/astropy__compressed_float_bzero.fits": ["(3,)", "1 dimensions"],
    "real/astropy__group_invalid.fits": ["no image HDU", "groups"],
    "real/astropy__theap-gap.fits": ["no image HDU", "table"],
    "real/astropy__zerowidth.fits": ["no image HDU with pixel data", "(0, 777777701)"],
    "real/cfitsio__iter_a.fit": ["no image HDU", "table"],
    "real/nom-tam-fits__bt12.fits.fz": ["no image HDU", "table"],
    "synthetic/bad_bitpix.fits": ["HDU 0", "BITPIX = 24", "8, 16, 32, 64, -32, -64"],
    "synthetic/c_bad_zcmptype.fits": ["HDU 1", "ZCMPTYPE = 'RICE_X'", "RICE_1"],
    "synthetic/c_descriptor_out_of_range.fits": ["HDU 1", "tile 0", "2147483647", "heap of 3342 bytes"],
    "synthetic/c_rice_allzero_bits.fits": ["HDU 1", "tiles 0-7 of 60"],
    "synthetic/c_ztile_zero.fits": ["HDU 1", "ZTILE1 = 0", "at least 1"],
    "synthetic/fits_with_lf_cards.fits": ["not FITS", "line feeds", "80 bytes"],
    "synthetic/header_not_padded.fits": ["HDU 0", "not filled with blanks", "2880"],
    "synthetic/naxis1_1d.fits": ["(2000,)", "1 dimensions"],
    "synthetic/noend.fits": ["END card is missing"],
    "synthetic/trunc_data.fits": ["HDU 0", "4000 bytes expected, 2500 present"],
    "synthetic/trunc_header.fits": ["HDU 0", "byte 1000"],
    "synthetic/zero_axis.fits": ["no image HDU with pixel data", "(40, 0)"],
}

# file: words that the warnings of read() must hold
WARNINGS = {
    "real/reproject__secchi_l0_a.fits": "BLANK = -32768 on floating-point pixels is ignored",
    "synthetic/bzero_as_string.fits": "BZERO is a text",
    "synthetic/simple_F.fits": "SIMPLE = F",
}

BIT_EQUAL = {
    "real/astropy__m13_gzip.fits": ("real/astropy__m13.fits", 0),
    "real/astropy__m13_hcomp.fits": ("real/astropy__m13.fits", 0),
    "real/astropy__m13_plio.fits": ("real/astropy__m13.fits", 0),
    "real/astropy__m13_rice.fits": ("real/astropy__m13.fits", 0),
    "real/fitsio__test_rice_dither2_seed42.fits.fz": ("real/fitsio__test_rice_dither2_seed42.fits", 0),
    "real/afw__ticketdm26260.fits.fz": ("real/afw__ticketdm26260.fits", 0),
    "synthetic/c_rice_i16_ztile_edge.fits": ("synthetic/c_nocompress.fits", 1),
}


def pixels(path, index):
    with open_file(path) as source:
        return source.read(source.hdus[index])[1]


@pytest.mark.parametrize("name", VALUES)
def test_pixels(shared_data, name):
    for index, (dtype, shape, total, missing) in VALUES[name].items():
        found = pixels(shared_data / "fits" / name, index)
        assert (str(found.dtype), found.shape) == (dtype, shape)
        assert found.dtype.isnative
        assert np.isnan(found.astype(float)).sum() == missing
        assert np.nansum(found.astype(float)) == pytest.approx(total, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", BIT_EQUAL)
def test_compressed_files_are_bit_equal_to_their_partner(shared_data, name):
    other, index = BIT_EQUAL[name]
    expected = pixels(shared_data / "fits" / other, index)
    found = pixels(shared_data / "fits" / name, 1)
    assert np.array_equal(found, expected)
    assert found.dtype == expected.dtype


# astropy reads no pixels of a file with SIMPLE = F, and .Z with a further package only
@pytest.mark.parametrize("name", sorted(set(VALUES) - {"synthetic/simple_F.fits", "real/astropy__lzw.fits.Z"}))
def test_pixels_agree_with_astropy(shared_data, name):
    with fits.open(shared_data / "fits" / name) as theirs:
        for index in VALUES[name]:
            expected = theirs[index].data
            found = pixels(shared_data / "fits" / name, index)
            assert np.array_equal(found, expected, equal_nan=found.dtype.kind == "f")


def test_decoded_values(shared_data):
    folder = shared_data / "fits"
    assert pixels(folder / "real/astropy__compressed_float_bzero.fits", 1).tolist() == [1, 2, 3]
    assert np.array_equal(pixels(folder / "real/astropy__compressed_image.fits", 1).ravel(), np.arange(100))
    assert np.array_equal(np.sort(pixels(folder / "real/nom-tam-fits__test.fits.bz2", 0).ravel()), np.arange(25))
    assert np.all(pixels(folder / "real/astropy__fixed-1890.fits", 0) == 1890)
    stored = np.frombuffer((folder / "synthetic/bzero_as_string.fits").read_bytes()[2880:6880], ">i2").reshape(40, 50)
    assert np.array_equal(pixels(folder / "synthetic/bzero_as_string.fits", 0), stored.astype(int) + 32768)


@pytest.mark.parametrize("name", ERRORS)
def test_errors_name_what_is_wrong(shared_data, name):
    with pytest.raises(InputError) as caught:
        read(shared_data / "fits" / name, device="cpu")
    message = str(caught.value)
    assert "\n" not in message
    assert name.split("/")[1] in message
    for word in ERRORS[name]:
        assert word in message


@pytest.mark.parametrize("name", WARNINGS)
def test_warnings(shared_data, name):
    said = read(shared_data / "fits" / name, device="cpu").notes["warnings"]
    assert any(WARNINGS[name] in line for line in said), said


def test_no_file_is_forgotten(shared_data):
    here = {f"{kind}/{p.name}" for kind in ("real", "synthetic") for p in (shared_data / "fits" / kind).iterdir()}
    assert here == set(VALUES) | set(ERRORS) | set(WARNINGS)


@pytest.mark.parametrize("name", sorted(set(VALUES) | set(ERRORS)))
def test_inspect_lists_every_file_or_says_why_not(shared_data, name):
    path = shared_data / "fits" / name
    try:
        table = inspect(path)
    except InputError as e:
        assert name in ERRORS
        assert path.name in str(e)
        return
    assert len(table) >= 1
    assert (table["role"] == "image").sum() == (0 if name in ERRORS and name not in FAULTY_IMAGES else 1)


FAULTY_IMAGES = {
    "synthetic/bad_bitpix.fits", "synthetic/c_bad_zcmptype.fits", "synthetic/c_descriptor_out_of_range.fits",
    "synthetic/c_rice_allzero_bits.fits", "synthetic/c_ztile_zero.fits", "synthetic/trunc_data.fits",
}  # fmt: skip

_BATCH = """
import faulthandler, json, logging, sys
from skydelta.errors import InputError
from skydelta.io.read import read
faulthandler.enable()
logging.disable(logging.CRITICAL)
for path in sys.argv[1:]:
    print("begin", path, flush=True)
    try:
        print(json.dumps([path, "ok", float(read(path, device="cpu").image.sum())]), flush=True)
    except InputError as e:
        print(json.dumps([path, "error", str(e)]), flush=True)
"""


def test_doubtful_files_neither_crash_nor_stall_a_batch(shared_data):
    """In a child process, under a time limit, each between two good files that must come out right."""
    folder = shared_data / "fits"
    good = [folder / "real/nom-tam-fits__test_dup.fits", folder / "synthetic/tpv_sip.fits"]
    bad = [folder / name for name in ERRORS]
    order = [p for b in bad for p in (good[0], b, good[1])]
    done = subprocess.run(
        [sys.executable, "-c", _BATCH, *map(str, order)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-2000:]
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert [r[0] for r in results] == list(map(str, order))
    assert [r[1] for r in results] == ["ok", "error", "ok"] * len(bad)
    assert {r[2] for r in results if r[1] == "ok"} == {300.0, -111004.0}
