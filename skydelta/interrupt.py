# SPDX-License-Identifier: BSD-3-Clause
"""Ctrl-C and SIGTERM, of which no library can lose a word.

A signal becomes an exception, and Python drops one that is raised inside a callback from C (as compilers have them), in
a destructor, or in an import that catches all. So what was asked is kept here too, to be looked at between steps and at
the end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

from skydelta.errors import ExitCode

_asked = False  # plain: a lock that a handler waits for may be held by what it interrupts


def asked() -> bool:
    """Whether a signal has asked this process to end."""
    return _asked


def leave_if_asked() -> None:
    """End what runs if a signal came and its exception was lost; steps begin with this.

    Raises
    ------
    KeyboardInterrupt
        In the main thread alone, which signals go to.
    """
    if _asked and threading.current_thread() is threading.main_thread():
        raise KeyboardInterrupt


def _interrupt(number: int, frame: Any) -> None:
    global _asked  # noqa: PLW0603
    _asked = True
    raise KeyboardInterrupt


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM ends what is inside as Ctrl-C does, in good order; neither is lost."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, _interrupt)}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else somebody else's, or ignored on purpose
        before[signal.SIGINT] = signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _forget()


def _forget() -> None:
    """What was asked has been answered, unless the process as a whole listens: then it is `command` that answers."""
    global _asked  # noqa: PLW0603
    _asked = _asked and signal.getsignal(signal.SIGINT) is _interrupt


@contextlib.contextmanager
def command() -> Iterator[None]:
    """The whole of a command: its exit code is 130 whenever Ctrl-C came, wherever its exception went.

    Raises
    ------
    SystemExit
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    sys.unraisablehook = _unraisable
    code: Any = 0
    try:
        yield
    except SystemExit as e:
        code = e.code
    except KeyboardInterrupt:
        code = _said("nothing has begun")
    except Exception:
        if not _asked:
            raise
        code = int(ExitCode.SOME_FAILED)  # an import that was interrupted fails in any way
    if _asked and code != ExitCode.INTERRUPTED:
        code = _said("too late, all was done" if not code else "what went wrong before may come of it")
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a pipe whose reader is gone
            stream.flush()
    if signal.getsignal(signal.SIGINT) is _interrupt:  # nothing is left to tidy up
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(int(ExitCode.INTERRUPTED)))
    exec("")  # else Python kills itself where an interrupted exec(), as modules have them, was the last one
    sys.exit(code)


def _said(words: str) -> int:
    sys.stderr.write(f"skydelta: interrupted; {words}\n")
    return int(ExitCode.INTERRUPTED)


def _unraisable(lost: Any) -> None:
    """Say nothing of an exception that is answered later."""
    if not (_asked and issubclass(lost.exc_type, KeyboardInterrupt)):
        sys.__unraisablehook__(lost)
