"""Three hosts for all tests, made once; see ``support.hosts``."""

import json

import pytest

from psrt.report.files import SUMMARY
from support.hosts import VENDORS, Hosts, why_not

#: Ranks of each host.
LAYOUTS = {"two": (2, 1), "three": (2, 2, 1)}


@pytest.fixture(scope="session")
def hosts():
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with Hosts(3) as hosts:
        yield hosts


@pytest.fixture(scope="session", params=VENDORS)
def vendor(request):
    """Each MPI in turn."""
    if not (VENDORS[request.param] / "bin" / "mpirun").exists():
        pytest.skip(f"no {VENDORS[request.param].name}: make install MPI={request.param}")
    return request.param


@pytest.fixture(scope="session", params=LAYOUTS)
def layout(request):
    """Ranks of each host."""
    return LAYOUTS[request.param]


@pytest.fixture(scope="session")
def train(hosts):
    """Return what trains and records over hosts, and gives the run's folder."""

    def trained(name, vendor, ranks, *flags):
        out = hosts.folder / name
        words = ("-m", "psrt", "train", *flags, "--out", out, "--record")
        done = hosts.mpirun(vendor, ranks, *words)
        assert done.status == 0, done.stderr
        return out

    return trained


@pytest.fixture(scope="session")
def bits():
    """Return what gives the digest of a run's final parameters."""
    return lambda run: json.loads((run / SUMMARY).read_text())["parameters_sha256"]
