"""Programs: what `torch.export` makes of an embedder, as a .pt2 file for torch alone, and ONNX made of the same."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind

from wingbar.errors import UserError
from wingbar.files import atomic
from wingbar.models.embedder import Embedder
from wingbar.use.classify.head import ClassHead, Said
from wingbar.use.export.deployed import VECTOR, Compared, Deployed, check, pixels

About = Mapping[str, Any]  # what the file says of itself
INPUT, BATCH = "image", "batch"
NOTES = "wingbar.json"  # in a program: torch.export.load(path, extra_files={"wingbar.json": ""}) reads it
WHOLE = 2**31 - 2**20  # bytes: protobuf's files are smaller than 2 GB


def write_program(embedder: Embedder, about: About, path: Path, *, head: ClassHead | None = None) -> Compared:
    """A program of any batch size, kept if it says what PyTorch says."""
    content = io.BytesIO()  # torch writes a file's own name into it
    torch.export.save(_program(embedder, head), content, extra_files={NOTES: json.dumps(about, indent=2)})
    with atomic(path) as partial:
        partial.write_bytes(content.getvalue())
        return check(torch.export.load(io.BytesIO(partial.read_bytes())).module(), embedder, head)


def _program(embedder: Embedder, head: ClassHead | None) -> ExportedProgram:
    """Of two images, for any number of them."""
    if torch.__version__ < "2.8":  # a TorchVersion: 2.10 is newer
        raise UserError(f"programs and ONNX need torch 2.8 or newer, this is {torch.__version__}; pip install -U torch")
    network, images = Deployed(embedder, head), (pixels(2, embedder.size),)
    try:
        with torch.no_grad(), _quietly():
            shapes = {INPUT: {0: Dim(BATCH, min=1)}}
            program = torch.export.export(network, images, dynamic_shapes=shapes, strict=False)
    except Exception as error:  # whatever a method's own code does that cannot be traced
        why = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UserError(
            f"torch.export makes no program of {embedder.encoder.name} as it is used here: {why}"
        ) from error
    _forget_unused(program)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # names of folders on this machine
    return program


def _forget_unused(program: ExportedProgram) -> None:
    """Leave out tensors that no vector depends on: heads, queues and teachers around the trunk, counters in it."""
    unused = {node for node in program.graph.nodes if node.op == "placeholder" and not node.users}
    idle = {
        spec.arg.name: str(spec.target)
        for spec in program.graph_signature.input_specs
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER) and spec.arg.name in {node.name for node in unused}
    }
    for node in unused:
        if node.name in idle:
            program.graph.erase_node(node)
    specs = program.graph_signature.input_specs
    specs[:] = [spec for spec in specs if spec.arg.name not in idle]
    for target in idle.values():
        program.state_dict.pop(target, None)
    program.graph_module.recompile()


# --- ONNX ------------------------------------------------------------------------------------------------------------


def write_onnx(embedder: Embedder, about: About, path: Path, *, head: ClassHead | None = None) -> Compared:
    """An ONNX file of any batch size, kept if onnxruntime says what PyTorch says."""
    names = [VECTOR, *(Said._fields if head else ())]
    with _quietly():
        made = torch.onnx.export(
            _program(embedder, head), (), input_names=[INPUT], output_names=names, dynamo=True, verbose=False
        )
    assert made is not None
    model = made.model_proto
    if model.ByteSize() > WHOLE:
        raise UserError(
            f"the weights of {embedder.encoder.name} do not fit one ONNX file, which has 2 GB; use --to program"
        )
    _forget_origin(model)
    for name, value in sorted(about.items()):
        model.metadata_props.add(key=name, value=value if isinstance(value, str) else json.dumps(value))
    with atomic(path) as partial:
        partial.write_bytes(model.SerializeToString(deterministic=True))
        return check(_session(partial), embedder, head)


def _forget_origin(model: Any) -> None:
    """Leave out where in which Python file each node comes from, and call the first dimension what it is."""
    graph = model.graph
    values = (*graph.input, *graph.output, *graph.value_info)
    symbol = graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for part in (graph, *graph.node, *graph.initializer, *values):
        del part.metadata_props[:]
    for value in values:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == symbol:
                dim.dim_param = BATCH


def _session(path: Path) -> Any:
    """What onnxruntime makes of images."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])

    names = [output.name for output in session.get_outputs()]

    def run(images: Tensor) -> dict[str, Tensor]:
        return {
            name: torch.from_numpy(value)
            for name, value in zip(names, session.run(None, {INPUT: images.numpy()}), strict=True)
        }

    return run


@contextmanager
def _quietly() -> Iterator[None]:
    """Inside, exporters keep their warnings to themselves: what they make is compared with PyTorch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
