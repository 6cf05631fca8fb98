"""House rules for the Kubernetes files, which no schema knows: deploy/rules.py FOLDER

Prints each offence on a line and ends with 1 if there are any. Each rule is shown to fire on a broken copy of what is
there before the rest is believed.
"""

import copy
import re
import sys
from pathlib import Path

import yaml

SECONDS = {"s": 1, "m": 60, "h": 3600}
# otela's own, if no variable says otherwise: `otela start --help`, `otela ingress --help`.
DRAINS = {"start": {"OTELA_START_DRAIN": "20s", "OTELA_START_STOP_GRACE": "5s"}, "ingress": {"OTELA_INGRESS_DRAIN": "30s"}}
# What it takes beside: to end what was not finished, to leave, to be scheduled.
MARGIN = 10


def seconds(text):
    """A duration of otela's in seconds."""
    number, unit = re.fullmatch(r"(\d+)([smh])", text).groups()
    return int(number) * SECONDS[unit]


def stop_takes(container):
    """The longest that a container of otela's takes to stop, in seconds."""
    variables = {variable["name"]: variable.get("value") for variable in container.get("env", [])}
    drains = DRAINS.get(container.get("args", [""])[0], {})
    pause = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    return pause + sum(seconds(variables.get(name, usual)) for name, usual in drains.items()) + MARGIN


def container_offences(container, pod):
    """What is wrong with one container."""
    security, resources = container.get("securityContext", {}), container.get("resources", {})
    if security.get("capabilities", {}).get("drop") != ["ALL"] or security.get("allowPrivilegeEscalation") is not False:
        yield "keeps privileges: drop ALL, allowPrivilegeEscalation: false"
    if security.get("readOnlyRootFilesystem") is not True:
        yield "may write to its root file system"
    if "memory" not in resources.get("limits", {}) or not {"cpu", "memory"} <= resources.get("requests", {}).keys():
        yield "has no limit of memory, or does not request CPU and memory"
    if ":" in container.get("image", ":"):
        yield "names an image with a registry or tag, which are for images/kustomization.yaml to say"
    volumes = {volume["name"] for volume in pod.get("volumes", [])}
    for mount in container.get("volumeMounts", []):
        if mount["name"] not in volumes:
            yield f"mounts {mount['name']}, which is no volume"
    ports = {port.get("name") for port in container.get("ports", [])}
    for probe in ("readinessProbe", "livenessProbe", "startupProbe"):
        port = container.get(probe, {}).get("httpGet", {}).get("port", "http")
        if probe in container and port not in ports:
            yield f"{probe} asks the port {port}, which it has not"


def workload_offences(workload):
    """What is wrong with a Deployment."""
    pod, selector = workload["spec"]["template"]["spec"], workload["spec"]["selector"]["matchLabels"]
    labels = workload["spec"]["template"]["metadata"]["labels"]
    security = pod.get("securityContext", {})
    if not selector.items() <= labels.items():
        yield "does not select its own pods"
    if security.get("runAsNonRoot") is not True or security.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        yield "may run as root, or without seccomp"
    if pod.get("automountServiceAccountToken") is not False or pod.get("enableServiceLinks") is not False:
        yield "is given a token or variables of the cluster's, which it does not need"
    for container in pod["containers"] + pod.get("initContainers", []):
        yield from (f"container {container['name']} {offence}" for offence in container_offences(container, pod))
        if container.get("image") in ("otela", "otela-worker"):
            if not {"readinessProbe", "livenessProbe"} <= container.keys():
                yield f"container {container['name']} has no probes"
            if stop_takes(container) > pod.get("terminationGracePeriodSeconds", 30):
                yield f"terminationGracePeriodSeconds is too short: stopping may take {stop_takes(container)} s"


def service_offences(service, workloads):
    """What is wrong with a Service."""
    for workload in workloads:
        template = workload["spec"]["template"]
        if service["spec"]["selector"].items() <= template["metadata"]["labels"].items():
            ports = {port["name"] for container in template["spec"]["containers"] for port in container["ports"]}
            wanted = {port["targetPort"] for port in service["spec"]["ports"]}
            return [f"leads to the ports {wanted - ports}, which its pods have not"] if wanted - ports else []
    return ["selects nothing"]


def listing_offences(folder):
    """Files that no kustomization lists, or that are not there."""
    for path in sorted(folder.rglob("kustomization.yaml")):
        text = yaml.safe_load(path.read_text())
        listed = text.get("resources", []) + text.get("components", [])
        for generator in text.get("configMapGenerator", []):
            listed += generator.get("files", []) + generator.get("envs", [])
        for name in listed:
            if not (path.parent / name).exists():
                yield f"{path}: {name} is not there"
        for other in sorted(set(path.parent.iterdir()) - {path}):
            if other.is_file() and other.name not in listed:
                yield f"{other}: is in no list of {path}"


def offences(documents):
    """What is wrong with all documents together, each as (name, what)."""
    workloads = [document for document in documents if document["kind"] == "Deployment"]
    for document in documents:
        name = f"{document['kind']} {document['metadata']['name']}"
        if document["kind"] == "Deployment":
            yield from ((name, offence) for offence in workload_offences(document))
        if document["kind"] == "Service":
            yield from ((name, offence) for offence in service_offences(document, workloads))


def broken_copies(documents):
    """The same documents with one thing wrong, in each way that a rule is for."""
    replacements = {"ports": [], "securityContext": {}, "resources": {}, "terminationGracePeriodSeconds": 1}
    for number, document in enumerate(documents):
        if document["kind"] == "Deployment":
            spec = document["spec"]["template"]["spec"]
            ways = [("pod", key) for key in ("securityContext", "terminationGracePeriodSeconds", "enableServiceLinks")]
            ways += [("container", key) for key in ("securityContext", "resources", "readinessProbe", "livenessProbe")]
            ways += [("container", "ports")] + [("pod", "volumes")] * ("volumes" in spec)
        elif document["kind"] == "Service":
            ways = [("service", "selector"), ("service", "ports")]
        else:
            continue
        for where, key in ways:
            broken = copy.deepcopy(documents)
            if where == "service":
                broken[number]["spec"][key] = {"selector": {"a": "b"}, "ports": [{"targetPort": "nowhere"}]}[key]
            else:
                pod = broken[number]["spec"]["template"]["spec"]
                target = pod if where == "pod" else pod["containers"][0]
                if key in replacements:
                    target[key] = replacements[key]
                else:
                    del target[key]
            yield f"{document['kind']} {document['metadata']['name']} with a broken {key}", broken


def main(folder):
    """Checks a folder; returns how many offences there are."""
    documents = []
    for path in sorted(folder.rglob("*.yaml")):
        if path.name != "kustomization.yaml":
            documents += list(yaml.safe_load_all(path.read_text()))
    found = [f"{name}: {offence}" for name, offence in offences(documents)] + list(listing_offences(folder))
    for what, broken in broken_copies(documents):
        if not list(offences(broken)):
            found.append(f"deploy/rules.py: {what} is not noticed")
    if not documents:
        found.append(f"{folder}: no documents")
    print("".join(f"{offence}\n" for offence in found), end="", file=sys.stderr)
    return len(found)


if __name__ == "__main__":
    sys.exit(min(main(Path(sys.argv[1])), 1))
