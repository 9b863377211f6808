# SPDX-License-Identifier: BSD-3-Clause
"""The exception family and the exit codes that go with it.

Every error a user can cause is one line: where (file, HDU, step), the value found, the value allowed.
Numbers that led to it travel in ``numbers`` so that receipts and reports can show them.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit status of the command line."""

    OK = 0
    SOME_FAILED = 1
    USAGE = 2
    NOTHING_USABLE = 3
    ALGORITHM = 4
    DEVICE = 5
    INTERRUPTED = 130


class SkydeltaError(Exception):
    """Base of all errors raised on purpose.

    Parameters
    ----------
    message : str
        One line for a person.
    **numbers
        The values behind the message, JSON-able, kept in the receipt of a failed item.
    """

    exit_code = ExitCode.SOME_FAILED

    def __init__(self, message: str, **numbers: object) -> None:
        super().__init__(message)
        self.numbers = numbers

    def __reduce__(self):  # keyword numbers survive the trip between processes
        return (_rebuild, (type(self), str(self), self.numbers))


def _rebuild(cls: type[SkydeltaError], message: str, numbers: dict[str, object]) -> SkydeltaError:
    return cls(message, **numbers)


class ConfigError(SkydeltaError):
    """Wrong option, workflow key or argument."""

    exit_code = ExitCode.USAGE


class InputError(SkydeltaError):
    """A file or array that cannot be used: unreadable, truncated, inconsistent, without overlap."""

    exit_code = ExitCode.NOTHING_USABLE


class AlgorithmError(SkydeltaError):
    """The data were read but the method cannot give a trustworthy answer."""

    exit_code = ExitCode.ALGORITHM


class MisalignedError(AlgorithmError):
    """The images do not line up; products are written, flagged, and the item has failed."""

    exit_code = ExitCode.NOTHING_USABLE


class WorkerError(SkydeltaError):
    """Workers, ranks or the scheduler they were lent by are gone; the same command goes on where the run stopped."""


class DeviceError(SkydeltaError):
    """A device was asked for and is missing, or ran out of memory."""

    exit_code = ExitCode.DEVICE
