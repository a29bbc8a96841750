#!/bin/sh
# The cluster of compose.yaml: `cluster.sh up`, `run [KEY=VALUE...]`, `down`. It needs Docker with
# compose, version 1.29 or later, and nothing else.
#
# COMPOSE_PROJECT_NAME and AIRFLOW_PORT set the name of the cluster and the port of the UI.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
secrets=$here/.secrets
wait_seconds=${WAIT_SECONDS:-600}
export COMPOSE_PROJECT_NAME="${COMPOSE_PROJECT_NAME:-trainyard}"
REVISION=${REVISION:-$(git -C "$here" rev-parse HEAD 2>/dev/null || echo unknown)}
export REVISION

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

make_secrets() {
    mkdir -p -m 700 "$secrets"
    docker run --rm --user "$(id -u):$(id -g)" -v "$secrets:/secrets" \
        "${AIRFLOW_IMAGE:-trainyard-airflow}" \
        python /opt/trainyard/docker/make_secrets.py /secrets
}

# One line for each container: its name and state.
list_states() {
    for container in $(compose ps -q); do
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
    compose build api-server host-1
    make_secrets
    compose up -d
    wait_until_healthy
    password=$(sed 's/.*: "\(.*\)".*/\1/' "$secrets/airflow_passwords")
    echo "Airflow   http://localhost:${AIRFLOW_PORT:-8080}   user admin   password $password"
}

run() {
    compose exec -T api-server sh /opt/trainyard/docker/entrypoint.sh \
        python /opt/trainyard/docker/run_pipeline.py /opt/trainyard/configs/digits.yaml "$@"
}

down() {
    compose down --volumes --remove-orphans
    rm -rf "$secrets"
}

command=$1
shift
"$command" "$@"
