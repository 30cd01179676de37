"""Bitwise alignment test (ByteRobust §4.3): one training step of a reference model, with equal bits on every machine.

Compared is one digest of the loss, all gradients and the weights after the optimizer's step, on one thread. `run`
computes it on each device alone, `run_parallel` on the devices of a node together. A device whose second digest differs
from its first is faulty; otherwise the digests of nodes with equal hardware are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn import functional

from holdfast.symptoms import Symptom
from holdfast_checks import groups, numbers
from holdfast_checks.devices import be_exact, device_of, hardware_of, name_of
from holdfast_checks.node_tests.reference_model import Model, Part, Sizes, batch
from holdfast_checks.result import StageResult, StageTask, failed, passed, skipped

SYMPTOM = Symptom.SILENT_DATA_CORRUPTION.value
NETWORK_SYMPTOMS = {"cuda": Symptom.NCCL_INTERNAL_ERROR.value, "cpu": Symptom.NETWORK_ERROR.value}
REPEATS = 2
SIZES = {
    "cpu": Sizes(width=64, heads=4, layers=2, tokens=32, batch=2, vocabulary=256),
    "cuda": Sizes(width=1024, heads=16, layers=4, tokens=512, batch=2, vocabulary=8192),
}
EXPERTS = 4
LEARNING_RATE = 1e-3

Shape = tuple[int, int, int]
"""Sizes of the dimensions (pp, dp, tp); with experts tp is ep."""


def shapes(workers: int) -> tuple[Shape, ...]:
    """Return the parallel forms for this number of devices; from eight on one has all three dimensions."""
    if workers >= 8:
        return ((2, 2, 2),)
    if workers >= 4:
        return ((1, 2, 2), (2, 2, 1))
    return ((1, 2, 1), (1, 1, 2), (2, 1, 1)) if workers >= 2 else ()


def run(task: StageTask, begin: Callable[[], None]) -> Sequence[StageResult]:
    """Compute the same step several times on one device, and report the digest, or that the device contradicts
    itself."""
    be_exact()
    begin()
    device = device_of(task.context)
    name = name_of(device, task.context)
    found = {kind: {_digest(kind, device, Part()) for _ in range(REPEATS)} for kind in ("dense", "moe")}
    if differing := [kind for kind, digests in found.items() if len(digests) > 1]:
        text = f"the same step of the {' and the '.join(differing)} model came out differently a second time"
        return [failed(SYMPTOM, text, device=name)]
    return [_answer({kind: digests.pop() for kind, digests in found.items()}, device, name)]


def run_parallel(task: StageTask, begin: Callable[[], None]) -> Sequence[StageResult]:
    """Compute the step on several devices of the node together; worker 0 reports the digest."""
    be_exact()
    begin()
    context, forms = task.context, shapes(task.context.workers)
    device = device_of(context)
    if not forms:
        return [skipped("the node has one device")]
    if context.worker >= _size(forms[0]):
        return [skipped(f"{_size(forms[0])} devices take part")]
    found: dict[str, str] = {}
    try:
        some = msgspec.structs.replace(context, workers=_size(forms[0]))
        groups.among_workers(some, f"alignment-{task.stage.round}", task.stage.limit_s, device)
        for form in forms:
            part, mesh = _part(form, device)
            for kind in ("dense", "moe"):
                found[f"{kind} pp={form[0]} dp={form[1]} tp={form[2]}"] = _digest(kind, device, part, mesh)
        if context.worker != 0:
            return []
    except RuntimeError as error:
        return [failed(NETWORK_SYMPTOMS[device.type], f"collectives within the node: {error}")]
    return [_answer(found, device, "")]


def _answer(found: dict[str, str], device: torch.device, name: str) -> StageResult:
    whole = numbers.digest(*(torch.frombuffer(bytearray.fromhex(part), dtype=torch.uint8) for part in found.values()))
    parts = ", ".join(f"{kind} {part}" for kind, part in found.items())
    return passed(device=name, digest=whole, hardware=hardware_of(device), detail=parts)


def _digest(kind: str, device: torch.device, part: Part, mesh: DeviceMesh | None = None) -> str:
    """Return the digest of one training step; in a parallel form that of all its processes."""
    sizes = SIZES[device.type]
    if kind == "moe":
        sizes = msgspec.structs.replace(sizes, experts=EXPERTS)
    number_type = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = Model(sizes, part, device, number_type)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, foreach=False)
    loss = _forward_and_backward(model, sizes, device, number_type, mesh)
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    if mesh is not None and part.dp_size > 1:
        for gradient in gradients:
            dist.all_reduce(gradient, group=mesh.get_group("dp"))
            gradient /= part.dp_size
    optimizer.step()
    own = numbers.digest(loss, *gradients, *model.parameters())
    return own if mesh is None else _together(own, device)


def _forward_and_backward(
    model: Model, sizes: Sizes, device: torch.device, kind: torch.dtype, mesh: DeviceMesh | None
) -> torch.Tensor:
    """Return the loss, or the output of a stage that is not the last."""
    part = model.part
    hidden, words = batch(sizes, part.dp, device, kind)
    stages = dist.get_process_group_ranks(mesh.get_group("pp")) if mesh is not None else [0]
    if part.pp > 0:
        hidden = torch.empty_like(hidden)
        dist.recv(hidden, src=stages[part.pp - 1])
        hidden.requires_grad_()
    result: torch.Tensor = model(hidden)
    if part.pp == part.pp_size - 1:
        result = functional.cross_entropy(result.flatten(0, 1).float(), words.flatten())
        result.backward()  # type: ignore[no-untyped-call]
    else:
        dist.send(result.detach(), dst=stages[part.pp + 1])
        gradient = torch.empty_like(result)
        dist.recv(gradient, src=stages[part.pp + 1])
        result.backward(gradient)  # type: ignore[no-untyped-call]
    if part.pp > 0 and hidden.grad is not None:
        dist.send(hidden.grad, dst=stages[part.pp - 1])
    return result.detach()


def _part(form: Shape, device: torch.device) -> tuple[Part, DeviceMesh]:
    mesh = init_device_mesh(device.type, form, mesh_dim_names=("pp", "dp", "tp"))
    pp, dp, tp = (mesh.get_local_rank(name) for name in ("pp", "dp", "tp"))
    pp_size, dp_size, tp_size = form
    return (
        Part(
            tp=tp,
            tp_size=tp_size,
            pp=pp,
            pp_size=pp_size,
            dp=dp,
            dp_size=dp_size,
            tp_group=mesh.get_group("tp"),
        ),
        mesh,
    )


def _together(own: str, device: torch.device) -> str:
    mine = torch.frombuffer(bytearray.fromhex(own), dtype=torch.uint8).to(device)
    parts = torch.empty(len(mine) * dist.get_world_size(), dtype=torch.uint8, device=device)
    dist.all_gather_single(parts, mine)
    return numbers.digest(parts)


def _size(form: Shape) -> int:
    pp, dp, tp = form
    return pp * dp * tp
