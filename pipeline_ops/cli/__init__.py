"""The `trainyard` command, and the embedded Airflow that it starts.

Each module in `commands/` has `add_parser` and, for each of its commands, a function that takes the
parsed arguments and returns the exit status. Modules outside the standard library and the layers
below are imported inside functions, so that `trainyard --help` is fast. The commands call Airflow
over HTTP. They import it only to check the notifiers of a pipeline (`notify`) and to read the
connection with the credentials of a store (`storage.connection`).
"""
