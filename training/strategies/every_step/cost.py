"""What `every_step` asks of a machine, in bytes and FLOPs. Pure; a planning figure, rounded up."""

from contracts.terms.errors import Refused
from contracts.terms.messages import JobSpec
from training.compression.formats import FORMATS
from training.config import slices_of, train_config
from training.memory import num_parameters, peer_memory
from training.strategies.port import Cost, Machine

_TENSORS = 4  # of an item, at a stage between others: x and dy come, y and dx go
_EXCHANGES = 4  # of a gradient: own shards go, others' come; own buckets go, others' come


def cost(spec: JobSpec, machine: Machine) -> Cost:
    """See `PureStrategy.cost`."""
    rules, rows = spec.rules, spec.batch.rows_per_unit
    model = train_config(spec.model, spec.optimizer, spec.data, spec.batch).model
    pieces = slices_of(model, spec.batch.layer_ends)
    memory = max(peer_memory(model, each, rows, audits=rules.audit is not None) for each in pieces)
    if memory > machine.memory_bytes:
        raise Refused(f"a stage needs {memory} bytes of memory", memory_bytes=memory)
    boundary = FORMATS[rules.boundary_codec].num_bytes(rows * model.sequence_length * model.width)
    largest = max(num_parameters(model, each) for each in pieces)
    return Cost(
        item_flops=max(spec.item_flops),
        item_bytes=min(_TENSORS, 2 * len(pieces) - 2) * boundary,
        round_bytes=_EXCHANGES * FORMATS[rules.gradient_codec].num_bytes(largest),
        memory_bytes=memory,
    )
