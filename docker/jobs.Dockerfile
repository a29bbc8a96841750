# The jobs: Beam, TensorFlow, and no Airflow.
#
#   docker build -f docker/jobs.Dockerfile --target jobs -t trainyard-jobs .
#   docker build -f docker/jobs.Dockerfile --target host -t trainyard-host .     with an ssh server
#   ... --build-arg GPU=1                                                        for NVIDIA's GPUs
#
# Arguments: BASE_IMAGE; GPU; PIP_INDEX_URL, which only the first stage sees; REVISION, for the
# label. The only folder that a job writes to is /work.
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS build
ARG PIP_INDEX_URL
ARG SOURCE_DATE_EPOCH=1767225600
ARG GPU
COPY docker/image/packages.sh docker/locks/jobs.txt requirements-gpu.txt /tmp/
RUN [ "${GPU:-0}" = 0 ] || set -- /tmp/requirements-gpu.txt; sh /tmp/packages.sh /tmp/jobs.txt "$@"
COPY pyproject.toml README.md LICENSE /src/
COPY docker/locks/build.txt /src/docker/locks/
COPY pipeline_ops /src/pipeline_ops
COPY beam_jobs /src/beam_jobs
COPY docker/image /src/docker/image
RUN sh /src/docker/image/code.sh entrypoint.sh health.py write_digits.py ssh_config sshd_config

FROM ${BASE_IMAGE} AS system
ARG SOURCE_DATE_EPOCH=1767225600
COPY docker/image/system.sh /tmp/
# ssh: the job of a gang on several hosts starts its agents there.
RUN sh /tmp/system.sh openssh-client

FROM system AS jobs
COPY --from=build /opt/venv /opt/venv
COPY --from=build /opt/trainyard /opt/trainyard
# Of NVIDIA's driver: CUDA (compute), and NVML for the figures of the devices (utility). Which
# devices a container gets is left to its start: NVIDIA_VISIBLE_DEVICES is not set here.
ENV PATH=/opt/venv/bin:/opt/trainyard/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/work TMPDIR=/work TRAINYARD_LOCAL_FOLDER=/work/local \
    LD_LIBRARY_PATH=/opt/venv/lib/cuda CUDA_CACHE_PATH=/work/cuda \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /work
VOLUME /work
ENTRYPOINT ["sh", "/opt/trainyard/docker/entrypoint.sh"]
CMD ["python", "-c", "print('Name a job: python -m beam_jobs.__main__ --request URI')"]
ARG REVISION=unknown
LABEL org.opencontainers.image.title="trainyard-jobs" \
      org.opencontainers.image.description="The jobs of Trainyard: Beam and TensorFlow" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${REVISION}"

FROM jobs AS host
ARG SOURCE_DATE_EPOCH=1767225600
USER root
COPY docker/image/system.sh /tmp/
RUN sh /tmp/system.sh openssh-server
USER 10001:10001
EXPOSE 2222
HEALTHCHECK --interval=30s --timeout=10s --start-period=10s \
    CMD ["python", "/opt/trainyard/docker/health.py", "tcp", "2222"]
CMD ["/usr/sbin/sshd", "-D", "-e", "-f", "/opt/trainyard/docker/sshd_config"]
LABEL org.opencontainers.image.title="trainyard-host" \
      org.opencontainers.image.description="A host for jobs and gangs of Trainyard, over ssh"

# What is built without --target.
FROM jobs
