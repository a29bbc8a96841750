# PostgreSQL, Redis and an S3 server for tests, where the public images cannot be had. They are made
# of Debian's packages and moto, and obey those settings of the public images that
# docker/compose.yaml uses.
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS postgres
RUN apt-get -qq update \
 && apt-get -qq install -y --no-install-recommends postgresql > /dev/null \
 && rm -rf /var/lib/apt/lists/* \
 && install -d -o postgres -g postgres -m 700 /var/lib/postgresql/data
COPY postgres.sh /usr/local/bin/
USER postgres
CMD ["sh", "/usr/local/bin/postgres.sh"]

FROM ${BASE_IMAGE} AS redis
RUN apt-get -qq update \
 && apt-get -qq install -y --no-install-recommends redis-server > /dev/null \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /data

FROM ${BASE_IMAGE} AS s3
ARG PIP_INDEX_URL
RUN apt-get -qq update \
 && apt-get -qq install -y --no-install-recommends netcat-openbsd > /dev/null \
 && rm -rf /var/lib/apt/lists/*
COPY moto.txt /tmp/
RUN python3 -m pip install -q --no-cache-dir --no-deps --require-hashes -r /tmp/moto.txt
COPY moto_process.py s3_server.py /opt/
RUN printf '#!/bin/sh\nexec python3 /opt/s3_server.py\n' > /usr/bin/weed && chmod +x /usr/bin/weed
