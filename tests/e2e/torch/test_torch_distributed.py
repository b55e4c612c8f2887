"""Programs of torch.distributed over psrt, started as a user starts them."""

import socket
import textwrap

ENDS = """
    import os
    import sys

    import psrt.torch
    import torch
    from torch import distributed

    rank = os.environ["OMPI_COMM_WORLD_RANK"]
    size = os.environ["OMPI_COMM_WORLD_SIZE"]
    os.environ |= {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {"MASTER_PORT": sys.argv[1]}
    distributed.init_process_group("psrt")
    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    ddp(torch.ones(1, 2)).sum().backward()
    print("rank", rank, ddp.module.weight.grad.tolist(), flush=True)
    if rank == "1":
        sys.exit(0)
    ddp(torch.ones(1, 2)).sum().backward()
"""


def test_a_rank_that_ends_early_is_named_in_one_line(launch, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    script = tmp_path / "ends.py"
    script.write_text(textwrap.dedent(ENDS))
    done = launch.ranks(2, script, port, OMP_NUM_THREADS="1")
    assert sorted(done.stdout.split("\n"))[1:] == [f"rank {i} {[[1.0] * 2] * 2}" for i in (0, 1)]
    assert done.status == 5
    assert "psrt: error: rank 1 left with the end of its program (" in done.stderr
    assert "Traceback" not in done.stderr
