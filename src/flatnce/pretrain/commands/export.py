"""``flatnce export``: write a run's backbone for timm, plain torch or ONNX."""

from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from flatnce.cli.console import print_json
from flatnce.cli.options import parse_options
from flatnce.messages import say
from flatnce.pretrain.commands import RunName, Switch
from flatnce.pretrain.runs.folder import find_run


@dataclass(frozen=True)
class ExportOptions:
    """Write a run's backbone, without its projection head, with a model card.

    It is loaded back before the folder gets its name, and must give the same features.
    """

    run: RunName  # A run's name in runs/, or its folder.
    # timm (what timm.create_model and the Hugging Face hub read), torch (safetensors and a
    # plain config; also into torchvision's ResNets) or onnx.
    to: Annotated[str, tyro.conf.arg(metavar="timm|torch|onnx")]
    # The folder to write; by default exports/RUN-FORM in the run's own.
    out: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    # Which checkpoint; the newest by default.
    step: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    # Replace an earlier export in that folder. Other files are never removed.
    replace: Switch = False
    # Then upload the folder to this repository of the Hugging Face hub, USER/NAME, as the user of
    # `hf auth login` or HF_TOKEN; it is created if it does not exist.
    push_to_hub: Annotated[str | None, tyro.conf.arg(metavar="REPO")] = None
    private: Switch = False  # Create that repository as a private one.
    json: Switch = False  # Print JSON and nothing else.


def run(arguments: list[str]) -> int:
    """Run the command and return the exit code."""
    options = parse_options(ExportOptions, "export", arguments)
    repository = options.push_to_hub
    if options.private and repository is None:
        raise ValueError("--private is for --push-to-hub; give that too, or leave --private out")
    from flatnce.pretrain import exporting
    from flatnce.pretrain.training.saved import describe_status

    if repository is not None:
        exporting.check_repository(repository)
    folder = exporting.export(
        options.run, options.to, options.out, step=options.step, replace=options.replace
    )
    config = exporting.read_config(folder)
    ours = config[exporting.MARK]
    stands, said = describe_status(find_run(options.run), ours["step"])
    address = repository and exporting.push_to_hub(folder, repository, private=options.private)
    files = sorted(path.name for path in folder.iterdir())
    if options.json:
        found: dict[str, Any] = {
            "folder": str(folder),
            "architecture": config["architecture"],
            **{name: ours[name] for name in ("form", "features", "step", "input", "check")},
            **stands,
            "files": files,
            "hub": address,
        }
        print_json(found)
        return 0
    if said:
        say(said)
    say(
        f"{config['architecture']} of step {ours['step']:,}, features of width "
        f"{ours['features']:,}: {folder} ({', '.join(files)})\n"
        f"Loaded back: {exporting.describe_check(ours['check'])}. README.md shows how to use it."
    )
    if address:
        say(f"on the hub: {address}")
    return 0
