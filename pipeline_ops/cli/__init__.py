"""The `trainyard` command, and the embedded Airflow that it starts.

Each module in `commands/` has a function of the name of its command, which returns the exit status.
Its signature is the parser, its docstring the help. `main.py` lists the commands, and imports only
the module of the one that is called. Packages that take long to import, such as Beam, are imported
inside functions. The commands call Airflow over HTTP. They import it only to check the notifiers of
a pipeline (`notify`) and to read the connection with the credentials of a store
(`storage.connection`).
"""
