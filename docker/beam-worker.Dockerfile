# A pool of Beam's Python workers with our packages, for runners such as Flink: `worker_pool` in
# `preprocess.runner`.
#
#   docker build -f docker/beam-worker.Dockerfile -t trainyard-beam-worker .
#
# A worker is started with `python -c`, so it is run beside the runner, as a sidecar: the addresses
# that it is given are those that the runner has, often localhost.
#
# Arguments: BASE_IMAGE; PIP_INDEX_URL, which only the first stage sees; REVISION, for the label.
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS build
ARG PIP_INDEX_URL
ARG SOURCE_DATE_EPOCH=1767225600
COPY docker/image/packages.sh docker/locks/beam-worker.txt /tmp/
RUN sh /tmp/packages.sh /tmp/beam-worker.txt
COPY pyproject.toml README.md LICENSE /src/
COPY docker/locks/build.txt /src/docker/locks/
COPY pipeline_ops /src/pipeline_ops
COPY beam_jobs /src/beam_jobs
COPY docker/image /src/docker/image
RUN sh /src/docker/image/code.sh entrypoint.sh health.py

FROM ${BASE_IMAGE}
ARG SOURCE_DATE_EPOCH=1767225600
COPY docker/image/system.sh /tmp/
RUN sh /tmp/system.sh
COPY --from=build /opt/venv /opt/venv
COPY --from=build /opt/trainyard /opt/trainyard
ENV PATH=/opt/venv/bin:/opt/trainyard/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/work TMPDIR=/work TRAINYARD_LOCAL_FOLDER=/work/local \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /work
VOLUME /work
EXPOSE 50000
HEALTHCHECK --interval=10s --timeout=10s --start-period=60s \
    CMD ["python", "/opt/trainyard/docker/health.py", "tcp", "50000"]
ENTRYPOINT ["sh", "/opt/trainyard/docker/entrypoint.sh"]
CMD ["python", "-m", "apache_beam.runners.worker.worker_pool_main", "--service_port=50000"]
ARG REVISION=unknown
LABEL org.opencontainers.image.title="trainyard-beam-worker" \
      org.opencontainers.image.description="Beam's Python workers with Trainyard's packages" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${REVISION}"
