"""Resolving configurations; every mistake is one line with the near names."""

from pathlib import Path

import pytest

from lra_bench.config import ConfigError, RunConfig, reason_of
from lra_bench.protocols import names
from lra_bench.resolve import fitting_kinds, parse_grid, parse_overrides, resolve
from lra_bench.sweep import source_for
from tasks import task_spec

# The arena has no language models, the RFA paper's other half no classifiers.
NOT_MEANT = {("paper", "classification"), ("lra", "language modelling"), ("lra", "translation")}


@pytest.mark.parametrize("protocol", names("protocols"))
@pytest.mark.parametrize("model", names("models"))
def test_every_model_resolves_under_every_protocol(protocol: str, model: str) -> None:
    tasks = {"classification": "text", "language modelling": "lm", "translation": "mt"}
    for kind in fitting_kinds(model):
        if (protocol, kind) in NOT_MEANT:
            with pytest.raises(ConfigError, match="has no settings for task"):
                resolve(tasks[kind], model, protocol)
            continue
        config = resolve(tasks[kind], model, protocol)
        assert config.attention.name
        assert config.train.precision == "fp32"
        assert resolve(tasks[kind], model, protocol, device="cuda").train.precision == "bf16"
        assert RunConfig.model_validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize(("capability", "precision"), [((7, 5), "fp32"), ((8, 0), "bf16"), ((9, 0), "bf16")])
def test_cards_without_bf16_calculate_in_fp32(
    capability: tuple[int, int], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: capability)
    assert resolve("text", "rfa", "compact", device="cuda").train.precision == precision
    overrides = {"train.precision": "bf16"}
    assert resolve("text", "rfa", "compact", device="cuda", overrides=overrides).train.precision == "bf16"


@pytest.mark.parametrize(
    ("protocol", "task", "numbers"),
    [
        ("compact", "text", (2, 64, 2, 128, 4_000, 20_000, 8_000, 2)),
        ("compact", "listops", (2, 64, 2, 128, 2_000, 5_000, 1_000, 2)),
        ("compact", "retrieval", (2, 64, 2, 128, 4_000, 30_000, 800, 2)),
        ("lra", "text", (4, 256, 4, 1024, 4_000, 20_000, 8_000, 2)),
        ("lra", "listops", (4, 512, 8, 1024, 2_000, 5_000, 1_000, 2)),
        ("lra", "retrieval", (4, 128, 4, 512, 4_000, 5_000, 8_000, 3)),
        ("paper", "wikitext103", (16, 1024, 8, 4096, 512, 150_000, 6_000, 2)),
        ("paper", "mt", (6, 512, 8, 2048, 128, 20_000, 4_000, 2)),
    ],
)
def test_protocols_hold_the_published_numbers(protocol: str, task: str, numbers: tuple[int, ...]) -> None:
    run = resolve(task, "rfa", protocol)
    model, train = run.model, run.train
    sizes = (model.num_layers, model.dim, model.num_heads, model.mlp_dim, run.data.max_len)
    assert (*sizes, train.steps, train.warmup, model.head_layers) == numbers
    assert (train.batch_size, train.average) == {"mt": (256, 10), "wikitext103": (64, 0)}.get(task, (32, 0))
    assert (run.evaluation.beam, run.evaluation.length_penalty) == (4, 0.6)


def test_protocols_train_as_published() -> None:
    compact, lra = resolve("text", "rfa", "compact"), resolve("text", "rfa", "lra")
    assert (compact.train.lr, compact.model.pooling, compact.train.schedule) == (1e-4, "mean", "linear")
    assert (compact.train.betas, compact.train.weight_decay, compact.model.attention_dropout) == ((0.9, 0.999), 0, 0.1)
    assert (lra.train.lr, lra.train.betas, lra.train.eps, lra.train.weight_decay) == (0.05, (0.9, 0.98), 1e-9, 0.1)
    assert (lra.model.pooling, lra.model.positions, lra.model.attention_bias) == ("cls", "sinusoidal", False)
    assert [run.train.group_by_length for run in (compact, lra)] == [False, False]


def test_a_protocol_does_not_lengthen_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    short = task_spec("text").model_copy(update={"max_len": 100})
    monkeypatch.setattr("tasks.task_spec", lambda name: short)
    assert resolve("text", "rfa", "quick").data.max_len == 100
    assert resolve("text", "rfa", "quick", overrides={"data.max_len": 300}).data.max_len == 300


def test_overrides_are_named_unless_they_change_nothing() -> None:
    plain = resolve("text", "rfa", "quick")
    changed = resolve("text", "rfa", "quick", overrides={"train.steps": 7, "attention.num_features": 32})
    assert changed.train.steps == 7
    assert changed.attention.settings["num_features"] == 32
    assert changed.overrides == "train.steps=7"
    same = resolve("text", "rfa", "quick", overrides={"train.steps": plain.train.steps, "train.checkpoint_every": 1})
    assert same.overrides == ""
    as_it_would_be = {"train.precision": "fp32", "train.compile": False}
    for overrides in as_it_would_be, dict.fromkeys(as_it_would_be, "auto"):
        again = resolve("text", "rfa", "quick", overrides=overrides)
        assert (again.changed, again.protocol_label, again.digest("f")) == ("", "quick", plain.digest("f"))
    other = resolve("text", "rfa", "quick", overrides={"train.precision": "bf16", "train.compile": True})
    assert other.protocol_label == "quick with train.compile=true train.precision=bf16"
    graphs = {"train.compile": "reduce-overhead", "train.steps": 9_000}
    assert resolve("text", "rfa", "compact", device="cuda", overrides=graphs).changed == "train.steps=9000"
    assert resolve("mt", "rfa", "compact", device="cuda", overrides=graphs).changed.startswith("train.compile=reduce")


@pytest.mark.parametrize(
    ("said", "overrides", "changed"),
    [
        ("train.lr=2e-3 train.betas=[0.9,0.999] train.warmup=50 data.test_items=4000", "", ""),  # as quick has them
        ("train.group_by_length=false train.micro_batch_size=null model.head_layers=2", "", ""),
        ("attention.redraw=true attention.num_features=64", "", ""),
        ("train.lr=1e-3", "train.lr=0.001", ""),
        ("train.lr=0.0010 model.dropout=0 train.clip_norm=0", "train.clip_norm=0 train.lr=0.001", ""),
        ("train.lr=1 attention.temperature=2", "train.lr=1", "temperature=2"),
        ("attention.redraw=no attention.temperature=5e-1", "", "redraw=false temperature=0.5"),
    ],
)
def test_settings_are_named_by_what_they_come_to(said: str, overrides: str, changed: str) -> None:
    """However they are written, and not where they say what would be so without them: each name is a table."""
    run = resolve("text", "rfa", "quick", overrides=parse_overrides(said.split()))
    assert (run.overrides, run.attention.changed) == (overrides, changed)


def test_cross_attention_has_settings_of_its_own() -> None:
    plain = resolve("mt", "rfa", "quick")
    assert (plain.attention.settings["num_features"], plain.attention.cross["num_features"]) == (64, 128)
    more = resolve("mt", "rfa", "quick", overrides=parse_overrides(["cross.num_features=256"]))
    assert (more.attention.settings["num_features"], more.attention.cross["num_features"]) == (64, 256)
    assert more.attention.changed == "cross.num_features=256"
    assert more.digest("f") != plain.digest("f")
    said = ["attention.temperature=2", "cross.temperature=2.0", "cross.num_features=128", "attention.kernel=arccos"]
    both = resolve("mt", "rfa", "quick", overrides=parse_overrides(said)).attention
    assert both.changed == "kernel=arccos temperature=2"  # cross attention follows where it has none of its own
    assert (both.cross["kernel"], both.cross["temperature"], both.cross["num_features"]) == ("arccos", 2.0, 128)
    with pytest.raises(ConfigError, match="'rfa': no setting 'num_feature'; did you mean"):
        resolve("mt", "rfa", "quick", overrides={"cross.num_feature": 3})
    with pytest.raises(ConfigError, match=r"--set cross.num_features: language modelling has no cross attention"):
        resolve("lm", "rfa", "quick", overrides={"cross.num_features": 3})


@pytest.mark.parametrize(
    ("key", "value", "kinds"),
    [
        ("model.positions", "sinusoidal", {"text", "lm"}),
        ("model.pooling", "cls", {"text"}),
        ("model.embedding_std", 0.5, {"text"}),
        ("model.head_layers", 3, {"text"}),
        ("model.cutoffs", (20,), {"lm"}),
        ("train.label_smoothing", 0.2, {"mt"}),
        ("evaluation.beam", 2, {"mt"}),
        ("evaluation.length_penalty", 1.0, {"mt"}),
        ("evaluation.carry_state", False, {"lm"}),
    ],
)
def test_a_setting_that_a_task_does_not_heed_is_refused(key: str, value: object, kinds: set[str]) -> None:
    """Else the title of its table would say that it was another protocol."""
    for task in ("text", "lm", "mt"):
        if task in kinds:
            assert resolve(task, "rfa", "quick", overrides={key: value})
        else:
            with pytest.raises(ConfigError, match=f"^--set {key} changes nothing in {task_spec(task).kind}, only in "):
                resolve(task, "rfa", "quick", overrides={key: value})


def test_digest_follows_what_decides_the_result_and_nothing_else() -> None:
    plain = resolve("text", "rfa", "quick")

    def digest(**options: object) -> str:
        return resolve("text", "rfa", "quick", **options).digest("f")  # type: ignore[arg-type]

    assert digest(data_source="elsewhere") == digest(overrides={"train.checkpoint_every": 3}) == plain.digest("f")
    others = {
        digest(seed=1),
        digest(device="cuda"),
        digest(overrides={"train.lr": 1.0}),
        digest(overrides={"attention.num_features": 8}),
        plain.digest("g"),
        plain.digest("f", "plugin text"),
        resolve("text", "sdpa", "quick").digest("f"),
    }
    assert len(others) == 7
    assert plain.digest("f") not in others


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.stepz=3", "unknown setting 'train.stepz'; did you mean 'train.steps'"),
        ("steps=3", "not of the form section.name=value"),
        ("train.steps", "not of the form section.name=value"),
        ("trian.steps=3", "unknown setting 'trian.steps'; did you mean 'train.steps'"),
        ("train.steps=[1", "the value cannot be read"),
        ("train.steps=many", "train.steps = 'many': input should be a valid integer"),
        ("train.steps=0", "train.steps = 0: input should be greater than 0"),
        ("train.lr=-1", "train.lr = -1: input should be greater than 0"),
        ("train.clip_norm=.inf", "train.clip_norm = inf: input should be a finite number"),
        ("data.max_len=9999999999", "data.max_len = 9999999999: input should be less than 2147483648"),
        ("train.schedule=cosine", "train.schedule = 'cosine': input should be 'linear' or 'rsqrt'"),
        ("model.dropout=1.0", "model.dropout = 1.0: input should be less than 1"),
        ("model.num_heads=3", "model.dim 64 is not divisible by model.num_heads 3"),
        ("model.pooling=max", "model.pooling = 'max'"),
        ("train.betas=0.9", "train.betas = 0.9"),
        ("train.betas=[2,0.9]", "input should be less than 1"),
        ("attention.num_feature=3", "no setting 'num_feature'; did you mean 'num_features'"),
        ("attention.num_features=a", "num_features = 'a'"),
        ("attention.num_features=true", "attention.num_features=true: expected a number, not true or false"),
        ("train.clip_norm=no", "train.clip_norm=false: expected a number, not true or false"),
    ],
)
def test_bad_settings(setting: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve("text", "rfa", "quick", overrides=parse_overrides([setting]))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_grid_has_several_values_of_a_setting() -> None:
    said = ["attention.num_features=16, 32", "train.betas=[0.9,0.98],[0.9,0.999]", "attention.kernel=arccos"]
    assert parse_grid(said) == {
        "attention.num_features": [16, 32],
        "train.betas": [[0.9, 0.98], [0.9, 0.999]],
        "attention.kernel": ["arccos"],
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["train.stepz=1,2"], "unknown setting 'train.stepz'; did you mean 'train.steps'"),
        (["train.steps"], "--grid 'train.steps' is not of the form section.name=value"),
        (["train.steps="], "no value given; expected train.steps=a,b"),
        (["train.steps=1,,2"], "--grid 'train.steps=1,,2': the value cannot be read"),
        (["train.steps=1],[2"], "the value cannot be read"),
        (["train.steps=1", "train.steps=2"], "--grid train.steps is given twice"),
    ],
)
def test_bad_grids(settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_grid(settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("text", "rfaa", "quick"), "unknown model 'rfaa'; did you mean 'rfa'"),
        (("text", "rfa", "quik"), "unknown protocol 'quik'; did you mean 'quick'"),
        (("texd", "rfa", "quick"), "unknown task 'texd'; did you mean 'text'"),
    ],
)
def test_unknown_names(arguments: tuple[str, str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(*arguments)


def test_tasks_may_have_data_of_their_own(tmp_path: Path) -> None:
    for data, expected in {
        "auto": ("auto", "auto"),
        "some/folder": ("some/folder", "some/folder"),
        "some/folder, listops=embedded": ("some/folder", "embedded"),
        "listops=embedded": ("auto", "embedded"),
        "text=hub,listops=embedded": ("hub", "embedded"),
        "a=b": ("a=b", "a=b"),  # no task has that name: it is a path
        str(tmp_path): (str(tmp_path), str(tmp_path)),
    }.items():
        assert (source_for("text", data), source_for("listops", data)) == expected
    odd = tmp_path / "a,listops=b"
    odd.mkdir()
    assert source_for("listops", str(odd)) == str(odd)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no luck\nat all", "ValueError: no luck"),
        ("  inductor raised:\n  TypeError: its own\nmore", "ValueError: inductor raised: TypeError: its own"),
        ("nothing follows:", "ValueError: nothing follows:"),
        ("", "ValueError: "),
    ],
)
def test_the_reason_of_an_error_is_one_line(text: str, reason: str) -> None:
    assert reason_of(ValueError(text)) == reason


def test_a_task_that_a_protocol_does_not_name_is_trained_as_its_kind_is() -> None:
    for task, like in (("wmt14-fr", "mt"), ("wmt14-de", "mt")):
        for protocol in ("quick", "compact"):
            run, usual = resolve(task, "rfa", protocol), resolve(like, "rfa", protocol)
            assert (run.model, run.train, run.data) == (usual.model, usual.train, usual.data)
    words, letters = resolve("wikitext103", "rfa", "compact"), resolve("lm", "rfa", "compact")
    assert words.model.cutoffs
    assert words.train == letters.train
