"""The limit on restarts of a gang, and the wait before each restart."""

from __future__ import annotations

_BACK_OFF_SECONDS = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class RestartPolicy:
    """Counts consecutive failures without new progress.

    A training of months meets more dead machines than any fixed number allows, so a failure is
    forgiven once a later gang has started from a later checkpoint. An error that returns at the
    same step never gets that far and uses the budget up.

    Args:
      restarts: the number of consecutive failures that are forgiven.
    """

    def __init__(self, restarts: int):
        self._restarts = restarts
        self._in_a_row = 0
        self._farthest_start = 0

    def spend(self, started_from: int) -> float | None:
        """Counts the failure of a gang that had started from this step.

        Returns the seconds to wait before the next gang, or None if the budget is used up.
        """
        self._in_a_row = 1 if started_from > self._farthest_start else self._in_a_row + 1
        self._farthest_start = max(self._farthest_start, started_from)
        if self._in_a_row > self._restarts:
            return None
        return _BACK_OFF_SECONDS[min(self._in_a_row, len(_BACK_OFF_SECONDS)) - 1]
