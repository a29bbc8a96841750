"""The `trainyard` command, and the embedded Airflow that it starts.

One module per command (`run`, `ui`, `validate`, `explain`, `models`), each with `add_parser` and a function that takes the parsed
arguments and returns the exit status. What is neither in the standard library nor in the layers below is imported inside functions,
so that `trainyard --help` is fast; Airflow itself is never imported here, it is spoken to over HTTP.
"""
