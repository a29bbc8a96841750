"""The limit on restarts of a gang, and the wait before each restart."""

from __future__ import annotations

_BACK_OFF_SECONDS = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class RestartPolicy:
    """Counts consecutive failures without new progress.

    A training of months meets more dead machines than any fixed number allows, so a failure is
    forgiven once a later gang has started from a later checkpoint. An error that returns at the
    same step never gets that far and uses the budget up.

    Args:
      max_restarts: the number of consecutive failures that are allowed.
    """

    def __init__(self, max_restarts: int):
        self._max_restarts = max_restarts
        self._consecutive_failures = 0
        self._latest_start_step = 0

    def record_failure(self, start_step: int) -> float | None:
        """Counts the failure of a gang that had started from the checkpoint of `start_step`.

        Returns the seconds to wait before the next gang, or None if the budget is used up.
        """
        self._consecutive_failures = (
            1 if start_step > self._latest_start_step else self._consecutive_failures + 1
        )
        self._latest_start_step = max(self._latest_start_step, start_step)
        if self._consecutive_failures > self._max_restarts:
            return None
        return _BACK_OFF_SECONDS[min(self._consecutive_failures, len(_BACK_OFF_SECONDS)) - 1]
