"""The code on a card: three lines that load what was exported. Tests run every block."""

import json

from flatnce.pretrain.exporting.source import Source


def how_to_load(source: Source, form: str, folder: str, normalised_inside: bool) -> str:
    """Markdown with the code for a form, and with what else the weights fit into."""
    if form == "timm":
        return _timm(source, folder)
    if form == "onnx":
        return _onnx(source, folder, normalised_inside)
    return _torch(source, folder)


def _timm(source: Source, folder: str) -> str:
    code = f"""\
import timm

backbone = timm.create_model({_quoted("local-dir:" + folder)}, pretrained=True).eval()
features = backbone(images)  # {_taken(source)}"""
    transform = """\
settings = timm.data.resolve_model_data_config(backbone)
transform = timm.data.create_transform(**settings, is_training=False)  # of a PIL image"""
    return (
        f"{_block(code)}\n\nThe images, as it wants them:\n\n{_block(transform)}\n\n"
        "`num_classes=10` adds a new classifier to train. From the hub say "
        '`"hf-hub:NAME/REPOSITORY"` instead of `"local-dir:..."`.'
    )


def _torch(source: Source, folder: str) -> str:
    code = f"""\
from flatnce.pretrain.exporting import load_exported, preprocessing

backbone, prepare = load_exported({_quoted(folder)}), preprocessing({_quoted(folder)})
features = backbone(prepare(images))  # images: uint8, (batch, {source.channels}, height, width)"""
    if not source.from_torchvision:
        return _block(code)
    return (
        f"{_block(code)}\n\nWithout flatnce, into torchvision's own network: the names of the "
        f"parameters are torchvision's, and timm's {source.architecture} has the same.\n\n"
        f"{_block(_into_torchvision(source, folder))}"
    )


def _into_torchvision(source: Source, folder: str) -> str:
    lines = [
        "import torch, torchvision",
        "from safetensors.torch import load_file",
        "",
        f"net = torchvision.models.{source.architecture}()",
        "net.fc = torch.nn.Identity()",
    ]
    if source.stem == "small":
        lines += [
            f"net.conv1 = torch.nn.Conv2d({source.channels}, 64, 3, 1, padding=1, bias=False)",
            "net.maxpool = torch.nn.Identity()",
        ]
    elif source.channels != 3:
        lines.append(
            f"net.conv1 = torch.nn.Conv2d({source.channels}, 64, 7, 2, padding=3, bias=False)"
        )
    lines += [
        f"net.load_state_dict(load_file({_quoted(folder + '/model.safetensors')}))",
        f"features = net.eval()(images)  # {_taken(source)}",
    ]
    return "\n".join(lines)


def _onnx(source: Source, folder: str, normalised_inside: bool) -> str:
    taken = _taken(source) if not normalised_inside else f"values from 0 to 1, {_shape(source)}"
    code = f"""\
import onnxruntime

session = onnxruntime.InferenceSession({_quoted(folder + "/model.onnx")})
features = session.run(["features"], {{"images": images}})[0]  # float32 array, {taken}"""
    return f"{_block(code)}\n\nThe number of images is free; their size is fixed."


def _taken(source: Source) -> str:
    return f"normalised as below, {_shape(source)}"


def _shape(source: Source) -> str:
    return f"(batch, {source.channels}, {source.size}, {source.size})"


def _quoted(text: str) -> str:
    """The text as Python code, whatever is in it."""
    return json.dumps(text, ensure_ascii=False)


def _block(code: str) -> str:
    return f"```python\n{code}\n```"
