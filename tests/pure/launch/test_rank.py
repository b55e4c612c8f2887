"""What a rank of a script finds: torchrun's variables, where all meet, and a GPU of its own."""

import socket

import pytest

from psrt.core.errors import ConfigError
from psrt.launch import environment, rendezvous
from psrt.launch.gpus import gpu_of, gpus
from psrt.launch.hostfile import Host
from psrt.launch.rank import torchrun_variables
from support.cases import each

TWO = (Host("node01", 2), Host("node02", 1))
SLURM = {"SLURM_STEP_NUM_TASKS": "5", "SLURM_PROCID": "4", "SLURM_LOCALID": "0"}
SLURM |= {"SLURM_NODEID": "2", "SLURM_STEP_TASKS_PER_NODE": "2(x2),1"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}
OPEN_MPI |= {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
MPICH = {"PMI_RANK": "2", "PMI_SIZE": "3", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}
MPICH |= {"HYDI_CONTROL_FD": "7"}


@each(
    ("variables", "expected"),
    [
        (SLURM, "4 5 0 1 2"),
        (SLURM | {"SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_NODEID": "0"}, "1 5 1 2 0"),
        (SLURM | {"PMI_RANK": "4", "PMI_SIZE": "5"}, "4 5 0 1 2"),  # srun --mpi=pmi2
        (OPEN_MPI, "3 4 1 2 None"),  # which hosts there are, only a hostfile says
        (OPEN_MPI | {"PSRT_SLOTS": "1,1,2"}, "3 4 1 2 2"),
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, "3 4 1 4 0"),
        (MPICH | {"PSRT_SLOTS": "2,1"}, "2 3 0 1 1"),
        # mpirun inside a job of Slurm, whose variables are those of its daemon.
        (SLURM | OPEN_MPI | {"PSRT_SLOTS": "2,2"}, "3 4 1 2 1"),
        (SLURM | MPICH, "2 3 0 1 None"),
    ],
)
def test_the_place_of_a_rank(monkeypatch, variables, expected):
    monkeypatch.setattr(environment.os, "environ", variables)
    found = torchrun_variables()
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
    assert " ".join(str(found.get(name)) for name in names) == expected


def met(variables=(), hosts=(), *, spreads=True, interface=None):
    found = rendezvous.rendezvous(dict(variables), hosts, spreads=spreads, interface=interface)
    port = int(found.pop("MASTER_PORT", 0))
    assert not port or 29500 <= port < 32768  # below those that Linux gives to others
    return found, port


@each(
    ("job", "address"),
    [
        ({"hosts": TWO}, "node01"),
        ({"spreads": False}, "127.0.0.1"),
        ({"hosts": TWO[1:]}, "node02"),
        ({"hosts": (Host("localhost", 1),)}, "localhost"),
        ({"hosts": (Host("localhost", 1), *TWO)}, socket.gethostname()),
        ({"variables": {"SLURM_JOB_NODELIST": "n[3-5,8]"}}, "n3"),
        (
            {},
            socket.gethostname(),
        ),  # hosts of another batch system, which begins a job on the first
    ],
)
def test_the_ranks_meet_at_the_first_host(job, address):
    assert met(**job)[0] == {"MASTER_ADDR": address}


def test_what_the_user_sets_wins_and_a_network_is_for_all():
    users = {"MASTER_ADDR": "a", "MASTER_PORT": "1", "GLOO_SOCKET_IFNAME": "ib0"}
    assert met(users, TWO, interface="eth1") == ({"NCCL_SOCKET_IFNAME": "eth1"}, 0)
    assert met({"MASTER_ADDR": "a", "MASTER_PORT": ""}, TWO, interface="10.0.0.0/16")[0] == {}


def test_a_port_that_is_taken_is_left_to_its_owner(monkeypatch):
    _, first = met()
    with socket.socket() as owner:
        owner.bind(("", first))
        _, next_one = met()
        assert next_one != first
        monkeypatch.setattr(rendezvous, "_FIRST", first)
        monkeypatch.setattr(rendezvous, "_MOST", 1)
        with pytest.raises(ConfigError, match=f"no port from {first} to {first} is free"):
            met()


def test_the_gpus_of_a_host(tmp_path):
    assert list(gpus({}, tmp_path)) == []
    for name in ("nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert gpus({}, tmp_path) == ["0", "1"]  # CUDA numbers those that it sees
    assert gpus({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, tmp_path) == []
    assert gpus({"CUDA_VISIBLE_DEVICES": "MIG-1/2, 7"}, tmp_path) == ["MIG-1/2", "7"]


def test_each_rank_of_a_host_has_a_gpu_or_there_is_an_error():
    here = {"CUDA_VISIBLE_DEVICES": "4,7"}
    assert [gpu_of(here, local, 2, is_bound=False) for local in (0, 1)] == ["4", "7"]
    assert gpu_of(here, 5, 6, is_bound=True) == "4,7"  # Slurm's choice for this rank
    for size, has in ((3, "3 ranks and 2 GPUs, by CUDA_VISIBLE_DEVICES=4,7"), (1, "no GPU, by")):
        with pytest.raises(ConfigError, match=f"^--gpus: host .* has {has}.*; expected one per"):
            gpu_of(here if size == 3 else {"CUDA_VISIBLE_DEVICES": ""}, 0, size, is_bound=False)
