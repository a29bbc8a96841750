"""Retention: what a pipeline keeps below the storage root, and what `trainyard gc` removes.

The decision is pure. `inventory.py` lists what lies there, and `needs.py` says what is needed and
why, and names the rest. Then `collector.py` removes the rest, except for what was written or used
within the grace period. All times are those of the store.

Why this is safe beside runs:

- What a run uses is needed: the artifacts in its records, the inputs in the requests of its
  attempts, and everything that they were made from. A run counts as long as it is among the newest,
  was active within the grace period, or has an attempt without a status before its deadline.
- A run may find an old artifact that nothing else needs. The operator writes `.<fingerprint>.used`
  next to it, and then looks whether the artifact is still there (`record_use`). A collector looks
  at that file, removes the manifest, and looks again. If the file has been written in between, it
  puts the manifest back, whose files are still there. So either the run sees that the artifact is
  gone, and makes it again, or the collector sees that it is used.
- An artifact's files are removed under its lease (`system/lease.py`), after its manifest. A job
  that makes the same artifact at that moment waits.
- A file that any present manifest references stays, even if that manifest is not needed.
- A collector that is killed leaves an artifact without a manifest, which counts as absent. The next
  call removes the rest. Two collectors exclude each other by a lease. One that was paused while
  another took over looks at each candidate again before its removal.

Only what shows that this program has written it is ever removed: a run with a readable record or
request, an artifact with a manifest or a lock, and names that hold a fingerprint, at the places of
`contract/layout.py`. Everything else is reported as foreign and stays, as do links and folders of
other users (`storage/local_files.py`).
"""
