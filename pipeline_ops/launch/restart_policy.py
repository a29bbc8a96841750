"""How often a gang may be restarted, and how long to wait before it."""

from __future__ import annotations

_BACK_OFF_SECONDS = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class RestartBudget:
    """Counts the failures since the training last got ahead.

    A training of months meets more dead machines than any fixed number, and each of them is forgiven once a later gang has
    gone on from a later checkpoint. An error that comes back at the same step never gets that far, and uses the budget up.

    Args:
      restarts: how many failures in a row are forgiven.
    """

    def __init__(self, restarts: int):
        self._restarts = restarts
        self._in_a_row = 0
        self._farthest_start = 0

    def spend(self, started_from: int) -> float | None:
        """A gang that had started from this step has failed. Returns the seconds to wait before the next, or None where there is none."""
        self._in_a_row = 1 if started_from > self._farthest_start else self._in_a_row + 1
        self._farthest_start = max(self._farthest_start, started_from)
        if self._in_a_row > self._restarts:
            return None
        return _BACK_OFF_SECONDS[min(self._in_a_row, len(_BACK_OFF_SECONDS)) - 1]
