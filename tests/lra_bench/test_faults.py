"""Everything that can be wrong with a command: each case one line that names it, exit code 2, nothing half-written.

make test ARGS="tests/lra_bench/test_faults.py -v"    lists the cases
"""

import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lra_bench import ROOT, protocols
from lra_bench.checkpoint import load_checkpoint, previous
from lra_bench.cli import main
from lra_bench.engines import LocalEngine
from lra_bench.records import Record, read_records, write_record
from lra_bench.sweep import run_cells
from tasks import load_task

from .conftest import files_below, tiny
from .test_cli import SETTINGS, lra_bench
from .test_sweep import plans_of
from .test_trainer import trainer

BENCH = ["bench", "--task", "text", "--data", "embedded"]
SWEEP = ["sweep", "--task", "text", "--data", "embedded"]
RUN = ["run", "--task", "text", "--model", "rfa"]
COMMAND_LINE = [
    (["bnch"], "bnch"),
    (["bench", "--tsk", "text"], "--tsk"),
    (["run", "--model", "rfa"], "--task"),
    (["bench", "--seeds", "0"], "seeds"),
    (["bench", "--seeds", "two"], "--seeds"),
    (["bench", "--seeds", "9999999999"], "--seeds"),
    (["bench", "--minutes", "0"], "--minutes"),
    (["bench", "--task", "texd"], "unknown task 'texd'; did you mean 'text'"),
    ([*BENCH, "--models", "rfaa"], "unknown model 'rfaa'; did you mean 'rfa'"),
    ([*BENCH, "--models", ","], "no model given"),
    ([*BENCH, "--protocol", "quik"], "unknown protocol 'quik'; did you mean 'quick'"),
    ([*BENCH, "--device", "tpu"], "unknown device 'tpu'"),
    ([*BENCH, "--device", "cuda"], "torch sees no CUDA card"),
    ([*BENCH, "--set", "train.stepz=1"], "did you mean 'train.steps'"),
    ([*BENCH, "--set", "train.steps=none"], "train.steps"),
    ([*BENCH, "--set", "train.steps=-1"], "train.steps"),
    ([*BENCH, "--set", "train.lr=nan"], "train.lr"),
    ([*BENCH, "--set", "train.steps"], "train.steps"),
    ([*BENCH, "--set", "model.dim=[1"], "model.dim"),
    ([*BENCH, "--set", "model.num_heads=7"], "num_heads"),
    ([*BENCH, "--set", "attention.colour=3"], "none of the models softmax, sdpa, rfa has the setting"),
    ([*BENCH, "--set", "attention.num_features=x"], "num_features = 'x'"),
    ([*BENCH, "--set", "attention.num_features=0"], "attention 'rfa': num_features is 0"),
    ([*BENCH, "--set", f"attention.num_features={10**19}"], "attention 'rfa': "),
    ([*BENCH, "--set", "attention.pool_size=1"], "attention 'rfa': pool_size 1 is smaller than num_heads 2"),
    ([*BENCH, "--models", "linformer", "--set", "attention.k=0"], "attention 'linformer': k is 0"),
    ([*BENCH, "--models", "performer", "--set", "attention.redraw_every=-1"], "redraw_every is -1"),
    ([*BENCH, "--models", "reformer", "--set", "attention.num_buckets=3"], "num_buckets is 3"),
    (["bench", "--task", "mt", "--models", "rfa", "--set", "cross.temperature=0"], "temperature is 0.0"),
    (
        ["bench", "--task", "lm", "--models", "rfa", "--set", "model.cutoffs=[100,50]"],
        "expected increasing numbers below 257",
    ),
    (["bench", "--task", "lm", "--models", "rfa", "--set", "model.cutoffs=[257]"], "model.cutoffs = [257]"),
    ([*BENCH, "--plugin", "nowhere.py"], "nowhere.py"),
    (["bench", "--task", "text", "--data", "nowhere"], "neither auto, hub, embedded nor an existing folder"),
    (["bench", "--task", "text", "--data", "embedded,hub"], "expected one source, and task=source for"),
    (["bench", "--task", "text", "--data", "embedded,text="], "expected one source, and task=source for"),
    (["bench", "--task", "text", "--data", "embedded,text=nowhere"], "nor an existing folder"),
    ([*RUN, "--seed", "-1"], "seed"),
    ([*RUN, "--threads", "0"], "--threads"),
    ([*SWEEP, "--engine", "slurm"], "unknown engine 'slurm'; expected local or ray"),
    ([*SWEEP, "--workers", "0"], "--workers"),
    ([*SWEEP, "--workers", "2", "--engine", "ray"], "--workers is for --engine local"),
    ([*SWEEP, "--tensorboard", "--engine", "ray"], "--tensorboard is for --engine local"),
    ([*SWEEP, "--address", "127.0.0.1:1"], "use it with --engine ray"),
    ([*SWEEP, "--cell-minutes", "0"], "--cell-minutes"),
    ([*SWEEP, "--grid", "train.lr=1e-3,fast"], "train.lr = 'fast'"),
    ([*SWEEP, "--grid", "attention.colour=1,2"], "none of the models softmax, sdpa, rfa has the setting"),
    ([*SWEEP, "--grid", "train.lr=1e-3", "--set", "train.lr=1e-4"], "--grid and --set train.lr say"),
    ([*SWEEP, "--grid", "train.compile=true,false", "--no-compile"], "--compile and --set train.compile say"),
    ([*BENCH, "--grid", "train.lr=1e-3"], "No such option: --grid"),
    (["profile", "--lengths", "0"], "--lengths '0': expected numbers of tokens"),
    (["profile", "--lengths", "9999999999"], "--lengths '9999999999'"),
    (["profile", "--lengths", "²"], "--lengths '²'"),
    (["profile", "--lengths", "long"], "--lengths 'long'"),
    (["profile", "--batch-size", "0"], "--batch-size"),
    (["profile", "--batch-size", "4", "--set", "train.batch_size=8"], "give one of them"),
    (["profile", "--set", "data.max_len=512"], "are those of --lengths"),
    ([*BENCH, "--no-compile", "--set", "train.compile=true"], "--compile and --set train.compile say"),
    (["leaderboard", "--out", "nowhere"], "not a results folder"),
    (["report", "--out", "nowhere"], "not a results folder"),
    (["compare", "rfa", "softmax", "--out", "nowhere"], "not a results folder"),
    (["compare", "rfa"], "second"),
    (["compare", "rfa", "rfa"], "'rfa' would be compared with itself; name two models"),
    (["leaderboard", "--out", "."], "no records"),
    (["report", "--out", "."], "no records"),
    (["compare", "rfa", "softmax", "--out", "."], "no records"),
    (["data", "describe", "texd"], "unknown task 'texd'"),
]


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[object, str, str]]:
    """The command line in this process, in an empty folder: exit code, what it printed, its errors."""

    def run(*arguments: object) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["lra-bench", *map(str, arguments)])
        handler = signal.getsignal(signal.SIGTERM)
        try:
            with pytest.raises(SystemExit) as ended:
                main()
        finally:
            signal.signal(signal.SIGTERM, handler)
        output, errors = capsys.readouterr()
        return ended.value.code, output, errors

    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return run


@pytest.mark.parametrize(("arguments", "message"), COMMAND_LINE, ids=[" ".join(a) for a, _ in COMMAND_LINE])
def test_command_lines(call: Callable[..., tuple[object, str, str]], arguments: list[str], message: str) -> None:
    code, output, errors = call(*arguments)
    assert (code, output) == (2, "")
    assert message in errors
    assert re.fullmatch(r"error: .+\n", errors)
    assert files_below(Path.cwd()) == set()


def test_an_install_without_the_checkout(
    call: Callable[..., tuple[object, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lra_bench.exits.ROOT", Path.cwd())
    message = f"error: no configs in {Path.cwd()}; lra-bench runs from its checkout: pip install -e . there\n"
    assert call("list") == (2, "", message)


HEAD = b"description: x\nfamily: y\nsource: z\n"
QUICK = (ROOT / "configs" / "protocols" / "quick.yaml").read_bytes()
RFA = b"description: x\npaper: y\nattention: rfa\n"
YAML = [
    ("protocols", b"", "valid dictionary"),
    ("protocols", b"description: [", "is not valid YAML"),
    ("protocols", b"\xff\xfe\x00broken", "is not UTF-8 text"),
    ("protocols", b"- a\n- list\n", "valid dictionary"),
    ("protocols", HEAD, "tasks is missing"),
    ("protocols", HEAD + b"tasks: {}\nmodle: {}\n", "did you mean"),
    ("protocols", HEAD + b"tasks: {listops: {}}\n", "no settings for task 'text'"),
    ("protocols", HEAD + b"tasks: {text: {trian: {}}}\n", "unknown section 'trian'"),
    ("protocols", QUICK.replace(b"steps: 500", b"steps: many"), "train.steps"),
    ("protocols", QUICK.replace(b"max_len: 512", b"max_len: long"), "data.max_len"),
    ("protocols", b"!!python/object/apply:os.system ['touch owned']\n", "is not valid YAML"),
    ("models", b"", "valid dictionary"),
    ("models", RFA + b"settings: 3\n", "settings"),
    ("models", RFA + b"settings: {num_featurez: 3}\n", "num_features"),
    ("models", b"description: x\npaper: y\nattention: rfaa\n", "rfaa"),
    ("models", b"attention: rfa\n", "is missing"),
    ("models", b"\xff", "is not UTF-8 text"),
]


@pytest.mark.parametrize(("kind", "content", "message"), YAML, ids=[f"{k} {c[:60]!r}" for k, c, _ in YAML])
def test_configuration_files(
    call: Callable[..., tuple[object, str, str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    kind: str,
    content: bytes,
    message: str,
) -> None:
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    (tmp_path / "configs" / kind / "bad.yaml").write_bytes(content)
    monkeypatch.setattr(protocols, "CONFIGS", tmp_path / "configs")
    chosen = ["--protocol", "bad"] if kind == "protocols" else ["--models", "bad"]
    code, output, errors = call(*BENCH, *chosen)
    assert (code, output) == (2, ""), errors
    assert message in errors
    assert re.fullmatch(r"error: .+\n", errors)
    assert files_below(Path.cwd()) == set()


RECORDS = [
    (b"", "cannot be read"),
    (b"{", "cannot be read"),
    (b"\xff\xfe", "cannot be read"),
    (b"null", "has schema version None"),
    (b"[1, 2]", "has schema version None"),
    (b'{"schema_version": 99}', "has schema version 99; this program reads 1"),
    (b'{"schema_version": 1}', "is not a valid record (run_id: field required)"),
    (b"[" * 100_000, "cannot be read"),
]


@pytest.mark.parametrize(("content", "message"), RECORDS, ids=[repr(c[:30]) for c, _ in RECORDS])
@pytest.mark.parametrize("verb", [["leaderboard"], ["report"]])
def test_records(
    call: Callable[..., tuple[object, str, str]],
    make_record: Callable[..., Record],
    tmp_path: Path,
    verb: list[str],
    content: bytes,
    message: str,
) -> None:
    bad = tmp_path / "out" / "runs" / "bad.json"
    bad.parent.mkdir(parents=True)
    bad.write_bytes(content)
    code, output, errors = call(*verb, "--out", tmp_path / "out")
    assert (code, output) == (2, "")
    warning, error = errors.splitlines()
    assert warning.startswith(f"warning: {bad} ")
    assert message in warning
    assert "no records" in error
    # Beside a good one it is named and left out, and it stays as it was.
    write_record(tmp_path / "out", make_record())
    code, _, errors = call(*verb, "--out", tmp_path / "out")
    assert code == 0
    assert message in errors
    assert errors.count("\n") == 1
    assert bad.read_bytes() == content


def flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]


@pytest.mark.parametrize(
    "damage",
    [lambda b: b"", lambda b: b[:100], lambda b: b[:-200], flip, lambda b: b"not a checkpoint" * 100],
    ids=["empty", "start", "truncated", "a byte flipped", "something else"],
)
def test_checkpoints(
    reviews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[bytes], bytes]
) -> None:
    """A damaged one is named and the one before it used; with both damaged there is none."""
    path = tmp_path / "c.pt"
    trainer(tiny(), load_task("text", data=reviews, max_len=64), path).fit()
    whole = load_checkpoint(path)
    assert whole is not None
    assert whole["progress"]["step"] == 12
    bad = damage(path.read_bytes())
    path.write_bytes(bad)
    found = load_checkpoint(path)
    assert found is not None
    assert found["progress"]["step"] == 8
    assert capsys.readouterr().err.endswith(f"warning: checkpoint {path} is damaged and not used\n")
    previous(path).write_bytes(bad)
    assert load_checkpoint(path) is None


def test_a_checkpoint_of_another_run_ends_the_cell_with_its_name(reviews: Path, tmp_path: Path) -> None:
    (plan,) = plans_of(reviews, tmp_path, "linear")
    plan.checkpoint.parent.mkdir()
    torch.save({"progress": {"pace": 3}, "losses": []}, plan.checkpoint)
    (record,) = run_cells([plan], LocalEngine(), say=lambda text: None)
    assert record.status == "failed"
    assert re.search(r"checkpoint .*\.pt is not of this run .* --force begins anew", record.reason)
    assert plan.checkpoint.exists()


def limited(size: int) -> Callable[[], None]:
    """As on a full disk: no file of this process or of its children grows beyond `size` bytes."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@pytest.mark.parametrize(
    ("size", "code"),
    [(150_000, 1), (1_500, 2), (1_000, 2)],
    ids=["the checkpoint does not fit", "the record does not fit", "prepared data do not fit"],
)
def test_a_full_disk(reviews: Path, tmp_path: Path, size: int, code: int) -> None:
    out = tmp_path / "out"
    command = ["bench", "--task", "text", "--models", "linear", "--data", reviews, "--out", out, *SETTINGS]
    command += ["--set", "model.dim=64"]
    if size > 1_000:
        load_task("text", reviews, 64)  # prepares them
    done = subprocess.run(
        [sys.executable, "-m", "lra_bench", *map(str, command)],
        capture_output=True, text=True, preexec_fn=limited(size), timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert not [name for name in files_below(out) if name.endswith(".tmp")]
    if code == 1:
        (record,) = read_records(out, Record)
        assert record.status == "failed"
        assert "File too large" in record.reason
        again = lra_bench(*command)  # with room again, nothing stands in the way
        assert again.returncode == 0, again.stderr
        assert [r.status for r in read_records(out, Record)] == ["ok"]
    else:
        assert re.search(r"^error: .*(out/runs/.*\.json: |cache .*)File too large", done.stderr, re.MULTILINE)
        assert "Traceback" not in done.stderr.split("error: ")[-1]
        assert not list(out.glob("runs/*.json"))
