"""The `trainyard` command.

Each module in `commands/` has a function of the name of its command, which returns the exit status.
Its signature is the parser, its docstring the help. `main.py` lists the commands, and imports only
the module of the one that is called. Packages that take long to import, such as Beam, are imported
in functions, so that a command starts soon.
"""
