# SPDX-License-Identifier: BSD-3-Clause
"""What stands for KvikIO in tests: the part of its interface that the package uses, and its ways to fail.

``FAULTS`` says what goes wrong: "late" (bytes come when they are waited for), "short" (a read gives part of what was
asked for), "alignment" (reads that do not begin on a page into a buffer on a page, or do not end on one or at the end
of the file, raise), "open" and "read" (raise, but in compatibility mode), "always" (raise), "hang" (a read never
returns).
"""

import os
import time
from enum import Enum
from types import SimpleNamespace

import numpy as np

__version__ = "stand-in"
PAGE = 4096
FAULTS = set(filter(None, os.environ.get("KVIKIO_FAULTS", "").split(",")))
SETTINGS = {"compat_mode": None, "num_threads": 1, "task_size": 4 << 20}
READS = []
"""(offset, bytes asked for, bytes given) of every read."""


class CompatMode(Enum):
    OFF = 0
    ON = 1


def reset(*faults):
    FAULTS.clear()
    FAULTS.update(faults)
    READS.clear()
    SETTINGS.update(compat_mode=None, num_threads=1, task_size=4 << 20)


def _compatible():
    return SETTINGS["compat_mode"] is CompatMode.ON


defaults = SimpleNamespace(set=SETTINGS.update, get=SETTINGS.get, is_compat_mode_preferred=_compatible)


class CuFile:
    def __init__(self, file, flags="r"):
        if "always" in FAULTS or ("open" in FAULTS and not _compatible()):
            raise RuntimeError("cuFile internal error")
        assert flags == "r"
        self._fd = os.open(file, os.O_RDONLY)

    def pread(self, buf, size=None, file_offset=0, task_size=None):
        assert hasattr(type(buf), "__cuda_array_interface__"), "KvikIO cannot read into the host here"
        while "hang" in FAULTS:
            time.sleep(1)
        if "read" in FAULTS and not _compatible():
            raise RuntimeError("Not supported on current file")
        there = os.fstat(self._fd).st_size
        if file_offset + size > there:
            raise RuntimeError("EOF")
        plain = np.ndarray.view(buf, np.ndarray)
        assert size <= plain.nbytes
        if "alignment" in FAULTS and not _compatible():
            on_page = file_offset % PAGE == 0 and (size % PAGE == 0 or file_offset + size == there)
            if not on_page:
                raise RuntimeError(f"{size} bytes from {file_offset} are not whole pages")
        give = max(size // 3, 1) if "short" in FAULTS else size

        def read():
            READS.append((file_offset, size, os.preadv(self._fd, [plain.data[:give]], file_offset)))
            return READS[-1][2]

        if "late" in FAULTS:
            plain[:size] = 0xA5
            return SimpleNamespace(get=read)
        got = read()
        return SimpleNamespace(get=lambda: got)

    def close(self):
        os.close(self._fd)
