# PostgreSQL, Redis and an S3 server for tests, in one image, where the public images cannot be had.
# They are Debian's packages and moto, and obey those settings of the public images that
# docker/compose.yaml uses.
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE}
ARG PIP_INDEX_URL
RUN apt-get -qq update \
 && apt-get -qq install -y --no-install-recommends netcat-openbsd postgresql redis-server > /dev/null \
 && rm -rf /var/lib/apt/lists/* \
 && install -d -o postgres -g postgres -m 700 /var/lib/postgresql/data \
 && install -d -m 1777 /data
COPY docker/moto.txt /tmp/
RUN python3 -m pip install -q --no-cache-dir --no-deps --require-hashes -r /tmp/moto.txt
COPY docker/postgres.sh /usr/local/bin/
COPY docker/s3_server.py support/object_servers/moto_process.py /opt/
RUN printf '#!/bin/sh\nexec python3 /opt/s3_server.py\n' > /usr/bin/weed && chmod +x /usr/bin/weed
USER postgres
WORKDIR /data
CMD ["sh", "/usr/local/bin/postgres.sh"]
