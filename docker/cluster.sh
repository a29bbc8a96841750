#!/bin/sh
# The cluster of compose.yaml. It needs Docker with compose, version 1.29 or later, and nothing
# else. docs/docker.md lists its settings, such as COMPOSE_PROJECT_NAME and AIRFLOW_PORT.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
wait_seconds=${WAIT_SECONDS:-600}
export COMPOSE_PROJECT_NAME="${COMPOSE_PROJECT_NAME:-trainyard}"
export AIRFLOW_IMAGE="${AIRFLOW_IMAGE:-trainyard-airflow}"
export HOST_IMAGE="${HOST_IMAGE:-trainyard-host}"
REVISION=${REVISION:-$(git -C "$here" rev-parse HEAD 2>/dev/null || echo unknown)}
export REVISION
secrets=$here/.secrets/$COMPOSE_PROJECT_NAME

compose() {
    if docker compose version >/dev/null 2>&1; then
        docker compose -f "$here/compose.yaml" "$@"
    elif command -v docker-compose >/dev/null; then
        docker-compose -f "$here/compose.yaml" "$@"
    else
        echo "docker compose is not installed. Install the compose plugin, or docker-compose." >&2
        return 1
    fi
}

provide_images() {
    if [ "${BUILD:-yes}" != no ]; then
        compose build api-server host-1
        return
    fi
    for image in "$AIRFLOW_IMAGE" "$HOST_IMAGE"; do
        docker image inspect "$image" >/dev/null 2>&1 || docker pull -q "$image"
    done
}

make_secrets() {
    mkdir -p -m 700 "$secrets"
    docker run --rm --user "$(id -u):$(id -g)" -v "$secrets:/secrets" "$AIRFLOW_IMAGE" \
        python /opt/trainyard/docker/make_secrets.py /secrets
}

# A clone that was made with umask 077 has files that the user of the containers cannot read.
check_configs() {
    unreadable=$(docker run --rm -v "$here/configs:/configs:ro" "$AIRFLOW_IMAGE" \
        find /configs \( ! -readable -o -type d ! -executable \) -print -prune)
    if [ -n "$unreadable" ]; then
        echo "The containers' user 10001 cannot read this in $here/configs:" >&2
        echo "$unreadable" >&2
        echo "Run: chmod -R a+rX $here/configs" >&2
        return 1
    fi
}

# One line for each container: its name and state. Without -a, compose v2 leaves out those that have
# ended, with or without an error.
list_states() {
    for container in $(compose ps -a -q); do
        docker inspect --format '{{.Name}} {{with .State.Health}}{{.Status}}{{else}}
            {{- .State.Status}}{{.State.ExitCode}}{{end}}' "$container"
    done
}

wait_until_healthy() {
    deadline=$(($(date +%s) + wait_seconds))
    while waiting=$(list_states | grep -v -e ' healthy$' -e ' exited0$'); do
        if [ "$(date +%s)" -gt "$deadline" ]; then
            echo "Not healthy after $wait_seconds seconds:" >&2
            echo "$waiting" >&2
            echo "Logs: docker logs NAME" >&2
            return 1
        fi
        sleep 2
    done
}

up() {
    provide_images
    make_secrets
    check_configs
    compose up -d --no-build
    wait_until_healthy
    echo "Airflow   http://localhost:${AIRFLOW_PORT:-8080}   user admin   password $(read_password)"
}

read_password() {
    sed 's/.*: "\(.*\)".*/\1/' "$secrets/airflow_passwords"
}

run() {
    config=${1:-digits.yaml}
    if [ ! -f "$here/configs/$config" ]; then
        echo "$here/configs/$config does not exist. Put the pipeline there, or name another." >&2
        return 1
    fi
    [ $# -eq 0 ] || shift
    TRAINYARD_AIRFLOW_PASSWORD=$(read_password) compose exec -T -e TRAINYARD_AIRFLOW_PASSWORD \
        api-server sh /opt/trainyard/docker/entrypoint.sh python -m pipeline_ops.cli.main \
        run --airflow http://127.0.0.1:8080 "/opt/trainyard/configs/$config" "$@"
}

down() {
    compose down --volumes --remove-orphans
    rm -rf "$secrets"
}

case "${1:-}" in
    up | run | down) "$@" ;;
    *)
        echo "Usage: cluster.sh up | run [FILE [--set KEY=VALUE]...] | down" >&2
        exit 2
        ;;
esac
