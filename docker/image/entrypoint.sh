#!/bin/sh
# Each file in /run/secrets whose name is in capitals becomes an environment variable of that name.
# So no secret is in the description of a container, as one in `environment` would be.
set -eu
for file in /run/secrets/[A-Z]*; do
    if [ -f "$file" ]; then
        export "$(basename "$file")=$(cat "$file")"
    fi
done
exec "$@"
