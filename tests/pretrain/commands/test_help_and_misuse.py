"""What the commands have in common: help on one screen, and misuse in one line with its remedy."""

import pytest

from export_subjects import write_run
from flatnce.cli import main
from flatnce.pretrain.commands.sweep import MOST_RUNS
from made_runs import write_pairs

TRAIN = "--objective --batch-size --ess --dry-run presets: --help-all"
SWEEP = "--objective --seed --at-once --resume NAME --help-all"


@pytest.mark.parametrize(
    "typed, words",
    [
        ("train --help", TRAIN),
        ("train -h", TRAIN),
        ("train digits --help", TRAIN),
        ("train cifar10 -h", f"{TRAIN} --backbone resnet18"),
        ("sweep --help", SWEEP),
        ("sweep -h", SWEEP),
        ("sweep cifar10 --help", SWEEP),
        ("evaluate --help", "knn linear-long semi transfer mi all --help-all"),
    ],
)
def test_help_fits_a_screen(typed, words, capsys):
    assert main(typed.split()) == 0
    shown = capsys.readouterr().out
    assert shown.count("\n") <= 60 and max(map(len, shown.splitlines())) <= 80
    assert all(word in shown.split() for word in words.split())


@pytest.mark.parametrize(
    "typed, said",
    [
        ("resume --help", "--evaluate [NAME ...] Protocols to evaluate with"),
        ("completion --help", "bash|zsh|fish Which shell."),
        ("data --help", "[NAME] Name of the data set"),
        ("compare --help", "--out PATH The file of the page; by default comparison.html here"),
        ("compare --help", "--watch Serve the page on this machine and update it during"),
        ("report --help", "--out PATH The file of the page; by default report.html in the run's"),
    ],
)
def test_help_says_what_an_argument_is_for_this_command(typed, said, capsys):
    assert main(typed.split()) == 0
    assert said in " ".join(capsys.readouterr().out.replace("│", " ").split())


@pytest.mark.parametrize(
    "typed, code, words",
    [
        ("train digist", 2, "did you mean 'digits'"),
        ("train --epochs 3", 2, "before the data set; say `flatnce train digits --epochs ...`"),
        ("train digits --backbone resnet81", 2, "did you mean 'resnet18'"),
        ("train digits --preset cifr10", 2, "did you mean 'cifar10'"),
        ("train digits --batch-size 9999", 2, "the data set, which has 1,438 items; use"),
        ("train digits --temperature 0", 2, "--temperature 0 must be a positive finite"),
        ("train digits --evaluate linaer", 2, "linear"),
        ("train digits --devices 3 --batch-size 64 --device cpu", 2, "--devices 3"),
        (
            "train digits --gamma 3",
            2,
            "--gamma 3 has no effect here, it is for --objective holder; ",
        ),
        (
            "train digits --ess-rate=0.1",
            2,
            "it is for a target such as --ess 0.075; give that too",
        ),
        (
            "train a:b --augment a:c --flip 0.9",
            2,
            "--flip 0.9 has no effect here, it is for the",
        ),
        (
            "train digits --head-layers 0 --head-out 7",
            2,
            "--head-out 7 has no effect here, it is",
        ),
        ("train digits --head-layers 1 --no-head-norm", 2, "--no-head-norm has no effect here"),
        ("train digits --epoch-samples 9", 2, "--epoch-samples 9 is for data of your own, not"),
        ("train digits --decode-size 9", 2, "--decode-size 9: the images of digits are 8 x 8"),
        ("train digits --ess 2", 2, "--ess 2 is not an ESS; give a number in (0, 1]"),
        (
            "resume first --device cpu",
            2,
            "a run continues on the device of its config; leave --device out",
        ),
        ("train digits --data ./photos", 2, "digits and --data ./photos: give the data set once"),
        ("train digits --data=./photos", 2, "digits and --data ./photos: give the data set once"),
        ("train digits --name=", 2, "the name '' is not that of a folder in runs/; give another"),
        ("train digits --name=.", 2, "the name '.' is not that of a folder"),
        ("sweep digits --seed 0 1 --name=", 2, "the name '' is not that of a folder"),
        ("train cifar10", 1, "flatnce data cifar10"),
        ("train ./nowhere", 1, "nowhere"),
        ("sweep digits --seed 0", 2, "a grid of one run"),
        ("sweep digits --seed 0 1 0", 2, "two runs would be called flatnce-b64-s0"),
        (f"sweep digits --seed {' '.join(map(str, range(MOST_RUNS + 1)))}", 2, "1,001 runs, more"),
        ("sweep digits --learn-temperature yes no", 2, "is a switch and takes no values"),
        ("sweep digits --gamma 1 2", 2, "--gamma 1 has no effect here"),
        ("sweep digits --seed 0 1 --gamma 1", 2, "--gamma 1 has no effect here"),
        ("sweep digits --ess-rate 0.1 0.2", 2, "it is for a target such as --ess 0.075"),
        ("sweep a:b --seed 0 1 --skip-unreadable", 2, "--skip-unreadable has no effect here"),
        ("sweep --resume", 2, "`flatnce sweep --resume NAME`"),
        ("sweep --resume nothing", 2, "--resume nothing is not a sweep"),
        ("data", 2, "name a data set"),
        ("data cifra10", 2, "did you mean 'cifar10'"),
        ("report", 2, "name at least one run"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_leaves_nothing(typed, code, words, capsys, tmp_path):
    assert main(typed.split()) == code
    shown = capsys.readouterr().err
    assert words in shown and shown.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "typed, code, words",
    [
        ("train digits --name first", 2, "runs/first already exists; give another --name, or"),
        ("report frist", 2, "did you mean 'first'"),
        ("report first --step 7", 2, "--step 7: runs/first/checkpoints has no such checkpoint"),
        ("report first --out nowhere/report.html", 2, "in a folder that does not exist"),
        ("report first --out runs", 2, "is a folder"),
        ("compare infonce-0 flatnce-0 --by objectiv", 2, "did you mean 'objective'"),
        ("export first --to tim", 2, "did you mean 'timm'"),
        ("export first --to torch --out runs", 2, "never removed"),
        ("evaluate first --protocol kn", 2, "did you mean 'knn'"),
        ("evaluate first --fraction 2.0", 2, "--fraction 2.0 must"),
        ("evaluate first --device nowhere", 2, "--device nowhere is unknown"),
    ],
)
def test_misuse_on_a_run_is_one_line_with_the_remedy(typed, code, words, capsys, tmp_path):
    write_run(tmp_path / "runs" / "first")
    write_pairs(tmp_path / "runs", [0.02])
    assert main(typed.split()) == code
    shown = capsys.readouterr().err
    assert words in shown and shown.count("\n") == 1


@pytest.mark.parametrize(
    "typed, words",
    [
        ("train digits --bacth-size 32", "--batch-size"),
        ("train digits --batch-size many", "many"),
        ("train digits --objective infonse", "did you mean 'infonce'"),
        ("train digits --ess 0.3 --learn-temperature", "both change the"),
        ("sweep digits --bacth-size 32 64", "--batch-size"),
        ("sweep digits --objective flatnce infonse", "did you mean 'infonce'"),
        ("sweep digits --batch-size 64 1", "--batch-size 1 leaves no negatives"),
        ("sweep digits --seed 0 1 --name a b", "unexpected 'b': --name takes one value"),
    ],
)
def test_a_mistyped_option_gets_a_suggestion_and_exit_code_two(typed, words, capsys, tmp_path):
    assert main(typed.split()) == 2
    shown = capsys.readouterr().err
    assert words in shown and shown.count("\n") == 1
    assert not (tmp_path / "runs").exists()
