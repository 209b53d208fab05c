"""What chapter 13 says about PyTorch: its collectives give what the chapter prints for ours."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

PROGRAM = """
import sys
import torch
import torch.distributed as dist
import torch.distributed.tensor.experimental
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

dist.init_process_group("gloo", init_method=sys.argv[2], rank=int(sys.argv[1]), world_size=2)
rank = dist.get_rank()
assert dist.get_world_size() == 2
assert torch.distributed.tensor.experimental.context_parallel

x = torch.tensor([[1.0, 2.0], [10.0, 20.0]][rank])
total, root, parted = x.clone(), x.clone(), torch.empty(2)
gathered, scattered, received = torch.empty(4), torch.empty(1), torch.empty(2)
dist.all_reduce(total)
dist.broadcast(root, 1)
dist.all_gather_into_tensor(gathered, x)
dist.reduce_scatter_tensor(scattered, x)
again, part = torch.empty(4), torch.empty(1)
dist.all_gather_single(again, x)
dist.reduce_scatter_single(part, x)
assert again.equal(gathered) and part.equal(scattered)
dist.all_to_all_single(parted, x)
sending = dist.isend(x, 1 - rank)
dist.recv(received, 1 - rank)
sending.wait()

linear = torch.nn.Linear(1, 1, bias=False)
linear.weight.data.fill_(1.0)
model = torch.nn.parallel.DistributedDataParallel(linear)
(model(torch.tensor([[[1.0], [2.0]], [[6.0]]][rank])) ** 2 / 2).mean().backward()
results = total, root, gathered, scattered, parted, received, linear.weight.grad
print([x.ravel().tolist() for x in results])
"""


@pytest.mark.thorough
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.skipif(sys.platform == "win32", reason="the file by which ranks meet has another URL")
def test_the_collectives_of_pytorch_give_the_same(tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), f"file://{tmp_path}/meet"], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    found = [eval(rank.communicate(timeout=600)[0]) for rank in ranks]
    shared = [[11, 22], [10, 20], [1, 2, 10, 20]]
    mean = [(5 / 2 + 36) / 2]  # of the ranks' gradients, 19.25, and not 41/3
    assert found[0] == [*shared, [11], [1, 10], [10, 20], mean]
    assert found[1] == [*shared, [22], [2, 20], [1, 2], mean]
