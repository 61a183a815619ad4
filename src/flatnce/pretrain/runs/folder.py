"""The folder of runs: where it is, what runs and sweeps in it are called, the lock of a run.

It is ``runs`` in the working directory, or what the variable FLATNCE_RUNS names. A run lies in it,
or one folder further down, as the runs of a sweep do.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from fnmatch import fnmatchcase
from pathlib import Path

from flatnce.files import lock, subfolders_of
from flatnce.messages import did_you_mean
from flatnce.pretrain.runs import log

__all__ = [
    "SWEEP",
    "delete",
    "find_run",
    "find_sweep",
    "is_several",
    "new_folder",
    "named_runs",
    "restored",
    "run_lock",
    "run_name",
    "run_names",
    "runs_folder",
    "sweep_named",
]

VARIABLE = "FLATNCE_RUNS"
SWEEP = "sweep.json"  # marks the folder of a sweep
# The config of a run; of one that is set aside while another replaces it.
CONFIGS = (log.CONFIG, f"{log.EARLIER}/{log.CONFIG}", f"{log.MOVING}/{log.CONFIG}")
MOST_NAMED = 8  # names in a message


def runs_folder() -> Path:
    """The folder of runs that are given by name."""
    return Path(os.environ.get(VARIABLE) or "runs").expanduser()


def new_folder(name: str | None, usual: str) -> Path:
    """The folder of a new run or sweep; ``..`` in its name is refused, a whole path is not."""
    place, name = runs_folder(), usual if name is None else name
    if not name.strip(" ./") or ".." in Path(name).parts:
        remedy = f"give another --name, its whole path, or another {VARIABLE}"
        raise ValueError(f"the name {name!r} is not that of a folder in {place}/; {remedy}")
    return place / name


def run_name(directory: Path) -> str:
    """How a run is named on the command line: in the folder of runs without that folder."""
    with suppress(ValueError):
        return str(directory.relative_to(runs_folder()))
    return str(directory)


def run_names(folder: Path | None = None, depth: int = 2) -> list[str]:
    """Names of the runs that have started in a folder, sorted; those in a sweep as SWEEP/RUN."""
    found = []
    for place in subfolders_of(folder or runs_folder()):
        if any((place / one).is_file() for one in CONFIGS):
            found.append(place.name)
        elif depth > 1:
            found += [f"{place.name}/{name}" for name in run_names(place, depth - 1)]
    return sorted(found)


def sweep_names() -> list[str]:
    """Names of the sweeps in the folder of runs, sorted."""
    return sorted(one.name for one in subfolders_of(runs_folder()) if (one / SWEEP).is_file())


def run_and_sweep_names() -> list[str]:
    """Names of the runs and sweeps in the folder of runs, sorted."""
    return sorted([*run_names(), *sweep_names()])


def find_run(name: str | Path, argument: str = "run") -> Path:
    """The directory of a run, by its name in the folder of runs or its path, an ``argument``."""
    place, called = _place_of(name), f"{argument}={str(name)!r}"
    if place is None:
        hint = did_you_mean(str(name), run_and_sweep_names(), _known(run_names()))
        raise ValueError(f"{called} is not a run directory or the name of one; {hint}")
    if (restored(place) / log.CONFIG).is_file():
        return place
    if (place / SWEEP).is_file():
        inside = run_names(place, 1)
        one = f", for example {name}/{inside[0]}" if inside else "; none has started"
        raise ValueError(f"{called} is a sweep of {len(inside)} runs; name one of them{one}")
    try:
        with suppress(ValueError), run_lock(place):  # it is free now, or not: ValueError
            return place
    except OSError as error:
        said = f"{called} cannot be put back ({error})"
        raise OSError(f"{said}; make {place} writable") from error
    raise ValueError(f"{called} is being replaced by another process; wait for it")


def find_sweep(name: str | Path) -> Path:
    """The directory of a sweep, given as a path or as a name in the folder of runs."""
    if (place := sweep_named(name)) is not None:
        return place
    hint = did_you_mean(str(name), sweep_names(), _known(sweep_names()))
    raise ValueError(f"resume={str(name)!r} is not a sweep or the name of one; {hint}")


def named_runs(names: Sequence[str]) -> list[Path]:
    """The directories of runs, each once, given by names, patterns such as 'flat*', or sweeps.

    A sweep stands for all its runs that have begun.
    """
    if not names:
        raise ValueError("RUN is missing: name at least one run")
    found: list[Path] = []
    for name in names:
        sweep, matching = sweep_named(name), []
        if sweep is not None:
            matching = [sweep / one for one in run_names(sweep, 1)]
        elif is_several(name):
            matching = [runs_folder() / one for one in run_names() if fnmatchcase(one, name)]
        found += map(restored, matching) if matching else [find_run(name)]
    return list(dict.fromkeys(found))


def is_several(name: str) -> bool:
    """Whether a name stands for several runs: of a sweep, or that match a pattern."""
    return bool(set(name) & set("*?[")) or sweep_named(name) is not None


def sweep_named(name: str | Path) -> Path | None:
    """The directory of a sweep, given by name or as a path; None if it is not a sweep."""
    place = _place_of(name)
    return place if place is not None and (place / SWEEP).is_file() else None


def _place_of(name: str | Path) -> Path | None:
    """A run or a sweep in the folder of runs, or else at a path; ``./name`` is always a path."""
    places = [Path(name)] if str(name).startswith(".") else [runs_folder() / name, Path(name)]
    kept = (place for place in places for file in (*CONFIGS, SWEEP) if (place / file).is_file())
    return next(kept, None)


def restored(place: Path) -> Path:
    """The directory of a run, which is put back if the process that replaced it was killed."""
    if any((place / aside).is_dir() for aside in (log.EARLIER, log.MOVING)):
        with suppress(ValueError, OSError), run_lock(place):
            pass
    return place


def _known(there: Sequence[str]) -> str:
    place = f"in {runs_folder()}/"
    if len(there) <= MOST_NAMED:
        return f"there are {', '.join(there)} {place}" if there else f"none is {place}"
    return f"there are {len(there):,} {place}; `flatnce runs` lists them"


def lock_beside(place: Path) -> Path:
    """The file of a run's lock, or of a sweep's."""
    return place.with_name(f".{place.name}.lock")


@contextmanager
def run_lock(directory: Path) -> Iterator[None]:
    """Hold the lock of a run, or of a sweep, against a second trainer; it ends with the process.

    Its file lies beside the folder, or inside where nothing can be written beside it, as in a
    mounted volume. Of several processes the first holds the lock for all. At the start and at the
    end, a run is put back whose replacement has not taken a step.
    """
    first = os.environ.get("RANK", "0") == "0"
    place = directory.resolve()  # one lock for every path that leads there
    new = [folder for folder in place.parents if first and not folder.exists()]
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"{place.parent} cannot be made ({error.strerror}); FLATNCE_RUNS names another folder"
        ) from error
    busy = f"{directory} is being trained by another process; wait for it, or stop it first"
    try:
        with (
            lock(lock_beside(place), busy) if first else nullcontext(True) as held,
            nullcontext() if held or not place.is_dir() else lock(place / log.TRAINING, busy),
        ):
            if first:
                log.restore_earlier(place)
            try:
                yield
            finally:
                if first:
                    log.restore_earlier(place)
    finally:
        with suppress(OSError):  # one is not empty, or gone
            for folder in new:
                folder.rmdir()


def delete(*directories: Path) -> None:
    """Remove the folders of runs, or of sweeps with their runs; links are not followed.

    A folder that is a link, holds other files, is not of flatnce or is being trained is refused,
    before any is removed.
    """
    for directory in directories:
        if directory.is_symlink():
            raise ValueError(f"{directory} is a link, which is not followed; name its target")
    known = {directory.resolve(): directory for directory in directories}
    places = [one for path, one in known.items() if path.parent not in known]
    with ExitStack() as locks:
        runs = {place: [place] for place in places}
        for sweep in (place for place in places if (place / SWEEP).is_file()):
            runs[sweep] = [sweep / name for name in run_names(sweep, 1)]
        # A sweep holds its own lock, and that of each run in training.
        above = [place.parent for place in places if (place.parent / SWEEP).is_file()]
        held = [*above, *places, *(run for inside in runs.values() for run in inside)]
        for place in {place.resolve(): place for place in held}.values():
            locks.enter_context(run_lock(place))
        for place in places:
            _check_deletable(place, runs[place])
        for place in places:
            hidden = place.with_name(f".{place.name}.deleted.partial")
            shutil.rmtree(hidden, ignore_errors=True)
            os.rename(place, hidden)  # at once: no half of a run is left
            shutil.rmtree(hidden)


def _check_deletable(place: Path, runs: Sequence[Path]) -> None:
    for run in runs:
        # These two beside it show that a damaged config.json was a run's.
        if not all((run / name).is_file() for name in (log.ENVIRONMENT, log.METRICS)):
            log.read_header(run / log.CONFIG)
        log.refuse_others(run, log.FILES)
    if (place / SWEEP).is_file():
        log.read_header(place / SWEEP)
        inside = {name for run in runs for name in (run.name, lock_beside(run).name)}
        log.refuse_others(place, {SWEEP, ".DS_Store", *inside})
