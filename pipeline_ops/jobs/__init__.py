"""The messages between a job process and the others: request, status, progress, cancellation."""
