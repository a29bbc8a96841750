# Airflow with Trainyard's core: DAG files, operators, pages and the command line. No TensorFlow,
# no Beam: jobs run elsewhere, in the image of jobs.Dockerfile.
#
#   docker build -f docker/airflow.Dockerfile -t trainyard-airflow .
#
# Arguments: BASE_IMAGE; PIP_INDEX_URL, which only the first stage sees; REVISION, for the label.
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS build
ARG PIP_INDEX_URL
ARG SOURCE_DATE_EPOCH=1767225600
COPY docker/image/packages.sh docker/locks/airflow.txt /tmp/
RUN sh /tmp/packages.sh /tmp/airflow.txt
COPY pyproject.toml README.md LICENSE /src/
COPY docker/locks/build.txt /src/docker/locks/
COPY pipeline_ops /src/pipeline_ops
COPY beam_jobs /src/beam_jobs
COPY dags /src/dags
COPY docker/image /src/docker/image
RUN sh /src/docker/image/code.sh entrypoint.sh health.py make_secrets.py ssh_config

FROM ${BASE_IMAGE}
ARG SOURCE_DATE_EPOCH=1767225600
COPY docker/image/system.sh /tmp/
# git: bundles of DAG files in a repository.
RUN sh /tmp/system.sh openssh-client git
COPY --from=build /opt/venv /opt/venv
COPY --from=build /opt/trainyard /opt/trainyard
ENV PATH=/opt/venv/bin:/opt/trainyard/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/work TMPDIR=/work TRAINYARD_LOCAL_FOLDER=/work/local \
    AIRFLOW_HOME=/work/airflow \
    AIRFLOW__CORE__DAGS_FOLDER=/opt/trainyard/dags \
    AIRFLOW__CORE__LOAD_EXAMPLES=False \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /work
VOLUME /work
EXPOSE 8080 8793
# Of the API server. The other components have checks of their own in compose.yaml.
HEALTHCHECK --interval=30s --timeout=10s --start-period=120s \
    CMD ["python", "/opt/trainyard/docker/health.py", "http", "8080/api/v2/version"]
ENTRYPOINT ["sh", "/opt/trainyard/docker/entrypoint.sh"]
CMD ["airflow", "api-server"]
ARG REVISION=unknown
LABEL org.opencontainers.image.title="trainyard-airflow" \
      org.opencontainers.image.description="Airflow with Trainyard, without TensorFlow and Beam" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${REVISION}"
