"""The files for clusters: the schemas that are at hand, and what has to fit together."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import ValidationError

from daft_vllm import __version__
from daft_vllm.cli.stopping.signals import _CLEAN_SECONDS, DRAIN_SECONDS
from daft_vllm.secrets import secrets_in
from tests.docker.files import FOLDER, MANIFESTS, REGISTRY, command_lines, documents, text

CLOSING_SECONDS = 5.0
"""What closing vLLM takes after the rows are drained (`daft_vllm.cli.stopping.signals`)."""
ENDS_WITHIN = max(DRAIN_SECONDS.values()) + CLOSING_SECONDS + _CLEAN_SECONDS
VOLUMES = {"data": "/data", "cache": "/cache", "shm": "/dev/shm"}
ENVIRONMENT = re.compile(r"\$\{?[A-Z_]+\}?$")


def pods() -> list[dict[str, Any]]:
    """The pods of job.yaml and rayjob.yaml."""
    (job,), (rayjob,) = documents("job.yaml"), documents("rayjob.yaml")
    cluster = rayjob["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [job["spec"]["template"]["spec"], *(group["template"]["spec"] for group in groups)]


def test_every_file_is_known() -> None:
    assert [path.name for path in MANIFESTS] == [
        "job.yaml",
        "ray-aws.yaml",
        "rayjob.yaml",
        "skypilot.yaml",
        "volumes.yaml",
    ]


def test_a_command_ends_within_the_seconds_that_it_gets() -> None:
    assert ENDS_WITHIN == 25.0
    for pod in pods():
        assert pod["terminationGracePeriodSeconds"] >= ENDS_WITHIN + 5
    (rayjob,) = documents("rayjob.yaml")
    head = rayjob["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    variables = {one["name"]: float(one["value"]) for one in head["env"]}
    assert variables["RAY_JOB_STOP_WAIT_TIME_S"] > ENDS_WITHIN
    for pod in pods()[1:]:
        (drain,) = [
            float(one["value"])
            for one in pod["containers"][0]["env"]
            if one["name"] == "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"
        ]
        assert drain + ENDS_WITHIN <= pod["terminationGracePeriodSeconds"]
    for name in ("skypilot.yaml", "README.md", "ray-aws.yaml"):
        stops = re.findall(r"--stop-timeout (\d+)", text(name))
        assert stops
        assert all(float(stop) > ENDS_WITHIN for stop in stops)
    (seconds,) = re.findall(r"^#SBATCH --signal=B:USR1@(\d+)$", text("slurm.sh"), re.M)
    assert float(seconds) >= 2 * ENDS_WITHIN


def test_variables_of_ray_are_those_of_the_installed_release() -> None:
    import ray

    sources = "".join(
        (Path(ray.__file__).parent / place).read_text(encoding="utf-8")
        for place in ("_private/ray_constants.py", "dashboard/modules/job/job_supervisor.py")
    )
    for name in ("rayjob.yaml", "ray-aws.yaml"):
        for variable in set(re.findall(r"RAY_[A-Z_]+_S\b", text(name))):
            assert f'"{variable}"' in sources


def test_pods_have_volumes_and_rights_that_fit_the_image() -> None:
    claims = {one["metadata"]["name"]: one for one in documents("volumes.yaml")}
    assert all(one["kind"] == "PersistentVolumeClaim" for one in claims.values())
    assert all(one["spec"]["accessModes"] == ["ReadWriteMany"] for one in claims.values())
    used = set()
    for pod in pods():
        (container,) = pod["containers"]
        assert {one["name"]: one["mountPath"] for one in container["volumeMounts"]} == VOLUMES
        volumes = {one["name"]: one for one in pod["volumes"]}
        assert set(volumes) == set(VOLUMES)
        used |= {volumes[name]["persistentVolumeClaim"]["claimName"] for name in ("data", "cache")}
        assert volumes["shm"]["emptyDir"]["medium"] == "Memory"
        user = pod["securityContext"]
        assert (user["runAsUser"], user["runAsGroup"], user["fsGroup"]) == (2000, 0, 0)
        assert user["runAsNonRoot"]
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert used == set(claims)


def test_local_paths_are_in_the_mounted_folder() -> None:
    for name in ("job.yaml", "rayjob.yaml"):
        (line,) = command_lines()[name]
        paths = [word.partition("=")[2] or word for word in line if re.search(r"\.(parquet|store)$", word)]
        assert paths
        assert all(path.startswith(VOLUMES["data"] + "/") for path in paths)


def test_a_job_goes_on_after_a_failure() -> None:
    (job,) = documents("job.yaml")
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    spec = job["spec"]
    assert spec["backoffLimit"] > 0
    assert spec["template"]["spec"]["restartPolicy"] == "Never", "podFailurePolicy asks for it"
    ignored, failed = spec["podFailurePolicy"]["rules"]
    assert ignored["action"] == "Ignore"
    assert ignored["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert failed["action"] == "FailJob"
    assert failed["onExitCodes"]["containerName"] == spec["template"]["spec"]["containers"][0]["name"]
    assert failed["onExitCodes"]["values"] == [2]
    (sky,) = documents("skypilot.yaml")
    assert sky["resources"]["job_recovery"]["recover_on_exit_codes"] == [143]


def test_the_rayjob_has_fields_of_kuberay() -> None:
    """Names of RayJobSpec and RayClusterSpec: ray-operator/apis/ray/v1/ in ray-project/kuberay, commit feeaf72."""
    (rayjob,) = documents("rayjob.yaml")
    assert (rayjob["apiVersion"], rayjob["kind"]) == ("ray.io/v1", "RayJob")
    spec = rayjob["spec"]
    assert set(spec) == {
        "entrypoint",
        "runtimeEnvYAML",
        "backoffLimit",
        "shutdownAfterJobFinishes",
        "ttlSecondsAfterFinished",
        "rayClusterSpec",
    }
    assert yaml.safe_load(spec["runtimeEnvYAML"]) == {"env_vars": {"DAFT_RUNNER": "ray"}}
    assert spec["backoffLimit"] > 0
    assert spec["shutdownAfterJobFinishes"], "or ttlSecondsAfterFinished is refused"
    cluster = spec["rayClusterSpec"]
    assert set(cluster) == {"rayVersion", "headGroupSpec", "workerGroupSpecs"}
    assert set(cluster["headGroupSpec"]) == {"rayStartParams", "template"}
    assert cluster["headGroupSpec"]["rayStartParams"] == {"num-gpus": "0"}
    (workers,) = cluster["workerGroupSpecs"]
    assert set(workers) == {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}
    images = {pod["containers"][0]["image"] for pod in pods()[1:]}
    assert len(images) == 1, "the driver and the engines need the same packages"


def test_the_cluster_on_aws_satisfies_rays_schema() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    (config,) = documents("ray-aws.yaml")
    whole = prepare_config(config)
    validate_config(whole)
    with pytest.raises(ValidationError, match="no_such_field"):
        validate_config({**whole, "no_such_field": 1})
    setup = [line for one in ("", "head_", "worker_") for line in whole[f"{one}setup_commands"]]
    assert all("boto3==" in line for line in setup), "Ray's own install a nightly build of Ray"
    assert config["head_node_type"] in config["available_node_types"]
    assert "--volume /opt/daft-vllm-cache:/cache" in config["docker"]["run_options"]
    assert any("-o 2000 -g 0" in one and "/opt/daft-vllm-cache" in one for one in config["initialization_commands"])


def test_the_task_for_skypilot_has_its_fields() -> None:
    """Names and types of ``get_task_schema`` and ``get_resources_schema`` (sky/utils/schemas.py of SkyPilot 0.14.1)."""
    (task,) = documents("skypilot.yaml")
    assert set(task) == {"name", "resources", "envs", "secrets", "setup", "run"}
    assert set(task["resources"]) == {"infra", "accelerators", "use_spot", "disk_size", "job_recovery"}
    assert set(task["resources"]["job_recovery"]) == {"strategy", "recover_on_exit_codes"}
    assert task["resources"]["job_recovery"]["strategy"] in ("FAILOVER", "EAGER_NEXT_REGION")
    assert task["resources"]["use_spot"] is True
    assert all(isinstance(one, str) for one in (*task["envs"].values(), *task["secrets"].values()))


def test_images_and_ray_have_the_versions_of_the_project() -> None:
    for path in (*MANIFESTS, FOLDER / "README.md"):
        found = re.findall(rf"{re.escape(REGISTRY)}:(\S+)", path.read_text(encoding="utf-8"))
        assert set(found) <= {__version__}
        assert found or path.name == "volumes.yaml"
    (rayjob,) = documents("rayjob.yaml")
    assert rayjob["spec"]["rayClusterSpec"]["rayVersion"] == version("ray")


def test_no_secret_is_written_in() -> None:
    for path in MANIFESTS:
        for one in documents(path.name):
            assert list(secrets_in(one)) == []
    (sky,) = documents("skypilot.yaml")
    assert set(sky["secrets"].values()) == {""}
    for path in filter(Path.is_file, FOLDER.iterdir()):
        written = path.read_text(encoding="utf-8")
        values = re.findall(r"(?:TOKEN|SECRET|PASSWORD|ACCESS_KEY\w*)[=:]\s*[\"']?([^\s\"']+)", written)
        assert [one for one in values if not ENVIRONMENT.match(one)] == []
        assert re.findall(r"AKIA[0-9A-Z]{16}|hf_[A-Za-z]{20,}", written) == []
