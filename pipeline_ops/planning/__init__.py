"""Decisions about a task before it starts: is there work, on which inputs, and why."""
