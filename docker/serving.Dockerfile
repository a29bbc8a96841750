# `trainyard serve`: a published model over HTTP. TensorFlow, and neither Airflow nor Beam.
#
#   docker build -f docker/serving.Dockerfile -t trainyard-serving .
#   docker run -p 127.0.0.1:8501:8501 -e AWS_... trainyard-serving \
#       digits --registry s3://bucket/models
#
# Arguments: BASE_IMAGE; PIP_INDEX_URL, which only the first stage sees; REVISION, for the label.
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS build
ARG PIP_INDEX_URL
ARG SOURCE_DATE_EPOCH=1767225600
COPY docker/image/packages.sh docker/locks/serving.txt /tmp/
RUN sh /tmp/packages.sh /tmp/serving.txt
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
EXPOSE 8501
HEALTHCHECK --interval=10s --timeout=10s --start-period=60s \
    CMD ["python", "/opt/trainyard/docker/health.py", "http", "8501/health"]
ENTRYPOINT ["sh", "/opt/trainyard/docker/entrypoint.sh", "trainyard", "serve", "--host=0.0.0.0"]
CMD ["--help"]
ARG REVISION=unknown
LABEL org.opencontainers.image.title="trainyard-serving" \
      org.opencontainers.image.description="A server for models that Trainyard has published" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${REVISION}"
