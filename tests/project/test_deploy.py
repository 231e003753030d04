"""The files in deploy/: what they name exists, and what they promise each other holds."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from delivery_service.metrics import Metrics, QueueState, WorkerState
from delivery_service.settings import CONFIG_VARIABLE, Settings
from delivery_service.worker.processes import MARGIN
from tests.project.commands import commands, fault

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file())
PAGES = [
    path
    for path in (*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md")
    if path.parent.name != "reference"
]
GRACE = Settings.model_fields["shutdown_grace"].default.total_seconds()


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return loaded


def resources(kind: str) -> Iterator[dict[str, Any]]:
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")):
        for found in yaml.safe_load_all(path.read_text()):
            if found["kind"] == kind:
                yield found


def units() -> dict[str, configparser.ConfigParser]:
    found = {}
    for path in sorted((DEPLOY / "systemd").glob("*.service")):
        unit = configparser.ConfigParser(interpolation=None, strict=False)
        unit.optionxform = str  # type: ignore[assignment, method-assign]
        unit.read_string(path.read_text())
        found[path.name] = unit
    return found


def containers() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Every container of the Kubernetes example, with the pod that holds it."""
    for kind in ("Deployment", "Job"):
        for resource in resources(kind):
            pod = resource["spec"]["template"]["spec"]
            for container in pod["containers"]:
                yield container, pod


# --- commands and settings


@pytest.mark.parametrize("path", [*FILES, *PAGES], ids=names([*FILES, *PAGES]))
def test_every_command_exists(path: Path) -> None:
    faults = [fault(each) for each in commands(path.read_text(encoding="utf-8"))]
    assert [each for each in faults if each] == []


def test_every_role_is_started_by_a_command_that_exists() -> None:
    started = [
        *(
            service["command"]
            for name, service in compose()["services"].items()
            if name != "database"
        ),
        *(container["args"] for container, _ in containers()),
        *(shlex.split(unit["Service"]["ExecStart"])[1:] for unit in units().values()),
    ]
    assert {command[0] for command in started} == {"api", "worker", "migrate"}
    assert len(started) == 9
    assert [fault(command) for command in started] == [None] * len(started)


def test_a_wrong_command_would_be_noticed() -> None:
    assert fault(["work"]) is not None
    assert fault(["worker", "--process", "2"]) is not None
    assert fault(["worker", "--processes"]) is not None
    assert fault(["worker", "--processes", "2"]) is None
    assert commands("run `surehook keys nonsense`, then") == [["keys", "nonsense"]]


@pytest.mark.parametrize("path", [*FILES, *PAGES], ids=names([*FILES, *PAGES]))
def test_every_variable_is_a_setting(path: Path) -> None:
    known = {f"SUREHOOK_{name.upper()}" for name in Settings.model_fields}
    known |= {CONFIG_VARIABLE, "SUREHOOK_ENDPOINT_SECRET"}
    known |= {"SUREHOOK_KEY", "SUREHOOK_URL"}  # an API key, and a receiver's own name for us
    known |= {"SUREHOOK_TEST_DATABASE_URL", "SUREHOOK_TEST_STRICT"}
    named = set(re.findall(r"SUREHOOK_[A-Z0-9_]*[A-Z0-9]", path.read_text(encoding="utf-8")))
    assert named - known == set()


def test_the_environment_files_make_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    from delivery_service.sealing import generate_encryption_key

    given = {}
    for line in (DEPLOY / "systemd" / "surehook.env.example").read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.partition("=")
            given[name] = value or generate_encryption_key()
    (config,) = (each["data"] for each in resources("ConfigMap"))
    for variables in (given, config):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert not Settings().allow_http


def test_compose_asks_for_what_the_example_holds() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    asked = set(re.findall(r"\$\{(\w+)", text))
    held = set(re.findall(r"^(\w+)=", (DEPLOY / "env.example").read_text(), re.MULTILINE))
    assert asked == held
    # Secrets are given, not kept here.
    secret = {"POSTGRES_PASSWORD", "SUREHOOK_ENCRYPTION_KEYS"}
    assert all(re.search(rf"\$\{{{name}:\?", text) for name in secret)
    assert all(f"\n{name}=\n" in (DEPLOY / "env.example").read_text() for name in secret)


# --- the image


def dockerfile() -> list[tuple[str, str]]:
    """Instruction and arguments, with continued lines joined."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n", " ", text).splitlines()
    return [
        (first, re.sub(r"\s+", " ", rest))
        for first, _, rest in (line.strip().partition(" ") for line in lines)
        if first
    ]


def values(instruction: str) -> list[str]:
    return [rest for first, rest in dockerfile() if first == instruction]


def test_the_image_copies_what_exists_and_all_that_the_package_is() -> None:
    copied = [
        source
        for arguments in values("COPY")
        if not arguments.startswith("--from")
        for source in arguments.split()[:-1]
    ]
    assert [source for source in copied if not (ROOT / source).exists()] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for package in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        assert f"{package}/" in copied
    for needed in ("pyproject.toml", "README.md", "LICENSE", "requirements.lock"):
        assert needed in copied
    allowed = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert {source.rstrip("/") for source in copied} == set(allowed)


def test_the_image_is_in_two_stages_exact_and_unprivileged() -> None:
    stages = values("FROM")
    assert len(stages) == 2
    assert all(stage.startswith("python:3.13-slim") for stage in stages)
    (installs,) = [run for run in values("RUN") if "pip install" in run]
    assert "--constraint requirements.lock" in installs
    (extras,) = re.findall(r"\.\[([\w,]+)\]", installs)
    project = (ROOT / "pyproject.toml").read_text()
    assert all(re.search(rf"^{extra} = \[", project, re.MULTILINE) for extra in extras.split(","))
    assert values("USER") == ["10001:10001"]
    assert dockerfile().index(("USER", "10001:10001")) < dockerfile().index(
        ("ENTRYPOINT", '["surehook"]')
    )


def test_every_requirement_of_the_service_is_locked_exactly() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *project["optional-dependencies"]["service"],
        *project["optional-dependencies"]["opentelemetry"],
    ]
    lock = (ROOT / "requirements.lock").read_text()
    locked = set(re.findall(r"^([\w-]+)==\S+", lock, re.MULTILINE))
    plain = {re.split(r"[\[<>=; ]", each)[0] for each in wanted}
    assert plain - locked == set()


def test_the_health_check_asks_where_every_role_answers() -> None:
    (check,) = values("HEALTHCHECK")
    command = json.loads(check.partition("CMD ")[2])
    assert command[0] == "python"
    compile(command[2], "HEALTHCHECK", "exec")
    (environment,) = [each for each in values("ENV") if "SUREHOOK_METRICS_PORT" in each]
    variables = dict(re.findall(r"(SUREHOOK_\w+)=(\S+)", environment))
    assert f"127.0.0.1:{variables['SUREHOOK_METRICS_PORT']}/healthz" in command[2]
    assert values("EXPOSE") == [
        f"{variables['SUREHOOK_PORT']} {variables['SUREHOOK_METRICS_PORT']}"
    ]
    for container, _ in containers():
        ports = {port["name"]: port["containerPort"] for port in container.get("ports", ())}
        if container["args"] != ["migrate"]:
            assert ports["metrics"] == int(variables["SUREHOOK_METRICS_PORT"])
            assert ports.get("http", 8080) == int(variables["SUREHOOK_PORT"])


# --- grace, probes and order


def test_everything_waits_longer_than_the_service_needs_to_stop() -> None:
    needed = GRACE + MARGIN.total_seconds()
    services = compose()["services"]
    for name in ("api", "worker"):
        assert services[name]["environment"]["SUREHOOK_SHUTDOWN_GRACE"] == f"{GRACE:g}"
        assert int(services[name]["stop_grace_period"].removesuffix("s")) > needed
    for name in ("surehook-api.service", "surehook-worker.service"):
        assert int(units()[name]["Service"]["TimeoutStopSec"]) > needed
    (config,) = resources("ConfigMap")
    assert config["data"]["SUREHOOK_SHUTDOWN_GRACE"] == f"{GRACE:g}"
    for container, pod in containers():
        if container["args"] != ["migrate"]:
            pause = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {"seconds": 0})
            assert pod["terminationGracePeriodSeconds"] > needed + pause["seconds"]


def test_compose_migrates_before_it_serves() -> None:
    services = compose()["services"]
    assert services["database"]["image"] == "postgres:18"
    assert "healthcheck" in services["database"]
    for name in ("migrate", "api", "worker"):
        build = services[name]["build"]  # an image with that name can't be pulled
        assert (DEPLOY / build["context"] / build["dockerfile"]).samefile(DEPLOY / "Dockerfile")
    for name in ("api", "worker"):
        conditions = services[name]["depends_on"]
        assert conditions["migrate"]["condition"] == "service_completed_successfully"
        assert conditions["database"]["condition"] == "service_healthy"


def test_systemd_migrates_before_it_serves() -> None:
    found = units()
    for name in ("surehook-api.service", "surehook-worker.service"):
        unit = found[name]["Unit"]
        assert "surehook-migrate.service" in unit["Requires"].split()
        assert "surehook-migrate.service" in unit["After"].split()
        assert unit["After"].split()[0] == "network-online.target"
    assert found["surehook-migrate.service"]["Service"]["Type"] == "oneshot"
    ports = [
        found[name]["Service"]["Environment"].partition("=")[2]
        for name in ("surehook-api.service", "surehook-worker.service")
    ]
    assert len(set(ports)) == 2  # they are on one machine


def test_kubernetes_probes_and_budgets() -> None:
    roles = {}
    for deployment in resources("Deployment"):
        template = deployment["spec"]["template"]
        labels = template["metadata"]["labels"]
        assert deployment["spec"]["selector"]["matchLabels"] == labels
        assert deployment["spec"]["replicas"] >= 2
        (container,) = template["spec"]["containers"]
        roles[labels["role"]] = container
        assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    # Late deliveries must not keep anybody from publishing.
    assert roles["api"]["readinessProbe"]["httpGet"]["path"] == "/healthz"
    (service,) = resources("Service")
    program = roles["worker"]["readinessProbe"]["exec"]["command"][-1]
    compile(program, "readinessProbe", "exec")
    assert f"http://{service['metadata']['name']}/readyz" in program
    budgets = [
        each["spec"]["selector"]["matchLabels"]["role"] for each in resources("PodDisruptionBudget")
    ]
    assert sorted(budgets) == sorted(roles)
    for container, pod in containers():
        assert pod["securityContext"]["runAsNonRoot"]
        assert (
            f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}"
            in values("USER")
        )
        assert container["securityContext"]["readOnlyRootFilesystem"]


# --- dashboard


def exposed() -> dict[str, set[str]]:
    """Every metric that a process can expose, with the names of its labels."""
    metrics = Metrics()
    metrics.attempt("delivered", 0.1, 0.1)
    metrics.claimed(1, 0.1)
    metrics.recorded(1, 0.1)
    metrics.ended["delivered"] += 1
    metrics.removed["events"] += 1
    metrics.queue_is(QueueState(0.0, 0, 1, {"enabled": 1}, {"closed": 1}, {"queued": 1}))
    metrics.watch_worker(lambda: WorkerState(0, 0, 0, 0))
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(metrics.render()[0].decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def expressions() -> list[str]:
    dashboard = json.loads((DEPLOY / "grafana" / "surehook.json").read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def test_the_dashboard_and_the_alerts_name_metrics_that_exist() -> None:
    known = exposed()
    rules = yaml.safe_load((ROOT / "docs" / "how-to" / "prometheus-rules.yml").read_text())
    alerts = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    assert alerts
    for expression in (*expressions(), *alerts):
        named = re.findall(r"\b((?:surehook|process)_\w+)", expression)
        assert named, expression
        assert set(named) - set(known) == set(), expression
        for labels in re.findall(r"\bby \(([^)]*)\)", expression):
            allowed = set().union(*(known[name] for name in named)) | {"instance"}
            assert {label.strip() for label in labels.split(",")} <= allowed, expression


def test_the_dashboard_leaves_out_none_of_our_metrics() -> None:
    shown = " ".join(expressions())
    bases = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in exposed()}
    missing = {name for name in bases if name.startswith("surehook_") and name not in shown}
    assert missing == set()


def test_the_panels_do_not_overlap() -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "surehook.json").read_text())
    cells: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        own = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert not cells & own, panel["title"]
        cells |= own
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
