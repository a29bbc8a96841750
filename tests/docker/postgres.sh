#!/bin/sh
# Makes the database of POSTGRES_USER and POSTGRES_DB on the first start, and serves it.
set -eu
programs=$(echo /usr/lib/postgresql/*/bin)
export PATH="$programs:$PATH" PGDATA=/var/lib/postgresql/data
if [ ! -f "$PGDATA/PG_VERSION" ]; then
    initdb -U "$POSTGRES_USER" -A scram-sha-256 --pwfile="$POSTGRES_PASSWORD_FILE" -E UTF8 \
        > /dev/null
    echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
    pg_ctl -w -o "-c listen_addresses= -k /tmp" start > /dev/null
    PGPASSWORD=$(cat "$POSTGRES_PASSWORD_FILE") createdb -h /tmp -U "$POSTGRES_USER" "$POSTGRES_DB"
    pg_ctl -w -m fast stop > /dev/null
fi
exec postgres -c listen_addresses='*' -k /tmp
