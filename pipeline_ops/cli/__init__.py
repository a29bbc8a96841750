"""The `trainyard` command, and the embedded Airflow that it starts.

Each command (`run`, `ui`, `validate`, `explain`, `models`) has a module in `commands/`, with
`add_parser` and a function that takes the parsed arguments and returns the exit status. Modules
outside the standard library and the layers below are imported inside functions, so that `trainyard
--help` is fast. The commands call Airflow over HTTP and never import it.
"""
