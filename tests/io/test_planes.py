# SPDX-License-Identifier: BSD-3-Clause
"""Mask conventions translate by name; numbers of other files never leak in."""

import numpy as np
import pytest

from skydelta.errors import InputError
from skydelta.io.planes import COMMUNITY_CODES, CORE_PLANES, JWST_BITS, MAX_PLANES, MaskPlanes, decode_mask


def names_at(decoded, y, x):
    return {n for n, b in decoded.planes.bits if int(decoded.mask[y, x]) >> b & 1}


def one(value, dtype):
    out = np.zeros((2, 3), dtype)
    out[1, 2] = value
    return out


def test_plain_mask_means_bad():
    for mask in (one(7, np.uint8), one(True, bool), one(-1, np.int16), one(3.0, np.float32)):
        decoded = decode_mask(mask, {})
        assert names_at(decoded, 1, 2) == {"BAD"}
        assert decoded.mask.dtype == np.int32
        assert (decoded.mask != 0).sum() == 1
        assert decoded.convention == "non-zero is BAD"


def test_nan_in_a_mask_is_no_data_and_fractions_are_refused():
    assert names_at(decode_mask(one(np.nan, np.float32), {}), 1, 2) == {"NO_DATA"}
    with pytest.raises(InputError, match=r"holds 0\.5; integers are needed"):
        decode_mask(one(0.5, np.float32), {})


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("INTRP", "INTERP"), ("CR", "CR"), ("SAT", "SAT"), ("EDGE", "EDGE"), ("DETECTED", "DETECTED"), ("BAD", "BAD"),
     ("DETECTED_NEGATIVE", "DETECTED_NEGATIVE"), ("NO_DATA", "NO_DATA"), ("SUSPECT", "SUSPECT")],
)  # fmt: skip
def test_named_bits_follow_the_name_not_the_number(theirs, ours):
    for bit in (0, 7, 20):
        decoded = decode_mask(one(1 << bit, np.int32), {f"MP_{theirs}": bit})
        assert names_at(decoded, 1, 2) == {ours}


def test_bits_without_a_name_are_bad_and_said():
    decoded = decode_mask(one((1 << 2) | (1 << 9), np.uint16), {"MP_CR": 2})
    assert names_at(decoded, 1, 2) == {"CR", "BAD"}
    assert decoded.notes == ["mask bits 9 have no name and count as BAD"]


def test_our_own_numbers_are_kept():
    planes = MaskPlanes().union(["SAT_TEMPLATE", "STREAK_TEMPLATE"])
    stored = np.arange(12, dtype=np.int32).reshape(3, 4) << 7
    decoded = decode_mask(stored, {f"MP_{n}": b for n, b in planes.bits})
    assert decoded.planes == planes
    assert np.array_equal(decoded.mask, stored)


def test_every_jwst_bit_translates_the_31st_too():
    for bit, name in JWST_BITS.items():
        decoded = decode_mask(one(1 << bit, np.uint32), {"TELESCOP": "JWST"})
        assert names_at(decoded, 1, 2) == {name}
        assert decoded.mask.dtype == np.int32
    assert JWST_BITS[31] == "NO_DATA"
    assert names_at(decode_mask(one(0x80000003, np.uint32), {"TELESCOP": "JWST"}), 1, 2) == {"NO_DATA", "BAD", "SAT"}


def test_too_many_planes_are_listed():
    with pytest.raises(InputError, match="at most 31") as caught:
        decode_mask(np.full((2, 2), 0xFFFFFFFF, np.uint32), {"TELESCOP": "JWST"})
    assert "TELEGRAPH" in str(caught.value)
    own = {f"MP_P{i}": i for i in range(31)}
    with pytest.raises(InputError, match="P30"):
        decode_mask(np.full((2, 2), 0x7FFFFFFF, np.int32), own)


def test_declared_planes_that_nobody_uses_give_way():
    own = {f"MP_P{i}": i for i in range(31)}
    decoded = decode_mask(one(1 << 30, np.int32), own)
    assert names_at(decoded, 1, 2) == {"P30"}
    assert len(decoded.planes) <= MAX_PLANES


def test_community_pipeline_codes_are_not_bits():
    header = {"INSTRUME": "DECam", "PROCTYPE": "InstCal"}
    for code, names in COMMUNITY_CODES.items():
        decoded = decode_mask(one(code, np.int32), header)
        assert names_at(decoded, 1, 2) == set(names)
    assert names_at(decode_mask(one(5, np.int32), header), 1, 2) == {"CR"}  # as bits it would be BAD and CR
    unknown = decode_mask(one(77, np.int32), header)
    assert names_at(unknown, 1, 2) == {"BAD"}
    assert "77" in unknown.notes[0]


def test_older_community_masks_are_bits():
    header = {"INSTRUME": "DECam", "PROCTYPE": "InstCal", "PLVER": "V3.2.1"}
    assert names_at(decode_mask(one(2 | 16, np.int32), header), 1, 2) == {"SAT", "CR"}
    assert names_at(decode_mask(one(5, np.int32), {**header, "PLVER": "V3.6.2"}), 1, 2) == {"CR"}


def test_two_names_on_one_bit_and_odd_numbers():
    with pytest.raises(InputError, match=r"(CR and SAT|SAT and CR) share bit 3"):
        decode_mask(one(8, np.int32), {"MP_SAT": 3, "MP_CR": 3})
    with pytest.raises(InputError, match=r"MP_SAT = 'x'; a bit number"):
        decode_mask(one(8, np.int32), {"MP_SAT": "x"})


def test_core_planes_come_first_everywhere():
    assert list(MaskPlanes())[: len(CORE_PLANES)] == list(CORE_PLANES)
