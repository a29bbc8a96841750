"""The rights and the secrets of each container of docker/compose.yaml."""

from __future__ import annotations

import pytest
import yaml
from containers import ROOT

SERVICES = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]


def find_users(secret: str) -> set[str]:
    """The containers that have a secret."""
    return {
        name
        for name, service in SERVICES.items()
        for each in service.get("secrets", [])
        if secret == (each if isinstance(each, str) else each["source"])
    }


@pytest.mark.parametrize(
    ("secret", "users"),
    [
        ("ssh_key", {"worker", "triggerer", "host-1", "host-2"}),
        ("airflow_passwords", {"api-server"}),
        ("AIRFLOW__API_AUTH__JWT_SECRET", {"api-server", "scheduler"}),
        ("AIRFLOW__API__SECRET_KEY", {"api-server", "triggerer", "worker"}),
        ("AIRFLOW__CELERY__BROKER_URL", {"scheduler", "worker"}),
        (
            "AIRFLOW__CORE__FERNET_KEY",
            {"api-server", "scheduler", "dag-processor", "triggerer"},
        ),
        (
            "AWS_SECRET_ACCESS_KEY",
            {"api-server", "dag-processor", "triggerer", "worker", "s3", "data"},
        ),
        ("postgres_password", {"postgres"}),
        ("redis_password", {"redis"}),
    ],
)
def test_a_secret_is_in_the_containers_alone_that_use_it(secret, users):
    """M12."""
    assert find_users(secret) == users


@pytest.mark.parametrize("name", SERVICES)
def test_no_container_has_rights_that_it_does_not_need(name):
    """M12."""
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    # Its image runs as root, and is not known to work without writing.
    assert name == "s3" or (service["read_only"] and "cap_add" not in service)
