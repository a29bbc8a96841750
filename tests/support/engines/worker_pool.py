"""A pool of Beam's Python workers on one address, as a program: `python worker_pool.py HOST:PORT`.

`apache_beam.runners.worker.worker_pool_main` listens on all interfaces.
"""

from __future__ import annotations

import sys

import grpc
from apache_beam.portability.api import beam_fn_api_pb2_grpc
from apache_beam.runners.worker.worker_pool_main import BeamFnExternalWorkerPoolServicer
from apache_beam.utils import thread_pool_executor


def serve(address: str) -> None:
    """Starts a process for each worker that a node asks for. Does not return."""
    server = grpc.server(thread_pool_executor.shared_unbounded_instance())
    beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(
        BeamFnExternalWorkerPoolServicer(use_process=True, data_buffer_time_limit_ms=-1), server
    )
    server.add_insecure_port(address)
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    serve(sys.argv[1])
