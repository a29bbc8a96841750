"""A signal that asks a command to stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from pipeline_ops.cli.stop_signals import Stopped, handle_stop_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_is_an_exception_with_the_exit_status_of_a_shell(number):
    before = signal.signal(number, signal.SIG_DFL)  # nohup ignores one of them
    try:
        with pytest.raises(Stopped) as stopped, handle_stop_signals():
            signal.raise_signal(number)
        assert stopped.value.exit_status == 128 + number
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)


_DROPPING = """
import os, signal, sys, time
from pipeline_ops.cli.stop_signals import Stopped, handle_stop_signals

os.register_at_fork(after_in_parent=lambda: signal.raise_signal(signal.SIGINT))
try:
    with handle_stop_signals():
        if os.fork() == 0:
            os._exit(0)
        time.sleep(30)
except Stopped as stopped:
    sys.exit(stopped.exit_status)
"""


def test_it_is_not_lost_in_a_place_where_python_drops_exceptions():
    done = subprocess.run([sys.executable, "-c", _DROPPING], capture_output=True, text=True)
    assert done.returncode == 130
    assert "Exception ignored in" in done.stderr


def test_a_second_one_does_not_interrupt_the_cleanup():
    done = []
    with pytest.raises(Stopped), handle_stop_signals():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.2)
            done.append(True)
    assert done
