"""Translation: pairs to subwords and back, readers, BLEU, numbers in two languages."""

from pathlib import Path

import numpy as np
import pytest

from tasks import DataError, PackedSequences, export_dataset, load_dataset, load_task, trivial_baselines
from tasks.parquet import write_parquet
from tasks.synthetic_numbers import english, generate_pairs, german
from tasks.translation import BEGIN, END, bleu, decode

PAIRS = {
    "train": (
        ["A man sleeps.", "Two dogs run quickly.", "A dog sleeps here."] * 8,
        ["Ein Mann schläft.", "Zwei Hunde rennen.", "Ein Hund schläft."] * 8,
    ),
    "validation": (["A dog runs."], ["Ein Hund rennt."]),
    "test": (["Two men sleep.", "A man 🐕 runs."], ["Zwei Männer schlafen.", "Ein Mann 🐕 rennt."]),
}


def write_pairs(folder: Path) -> Path:
    for split, (en, de) in PAIRS.items():
        write_parquet(folder / "multi30k" / f"{split}.parquet", {"en": en, "de": de})
    return folder


def test_tokens_give_the_texts_back(tmp_path: Path) -> None:
    task = load_task("mt", write_pairs(tmp_path))
    assert (task.dataset, task.kind, task.metric) == ("multi30k", "translation", "BLEU")
    for split, pairs in PAIRS.items():
        for sequences, texts in zip(getattr(task, split).inputs, pairs, strict=True):
            assert decode(task.tokenizer, sequences) == texts
    source, target = task.test.inputs
    assert source[0][-1] == END != BEGIN
    assert (target[0][0], target[0][-1]) == (BEGIN, END)
    assert max(int(s.tokens.max()) for s in task.train.inputs) < task.vocab_size


def test_the_cache_keeps_the_tokenizer(tmp_path: Path) -> None:
    first, second = (load_task("mt", write_pairs(tmp_path)) for _ in range(2))
    assert first.tokenizer == second.tokenizer != ""
    assert first.fingerprint == second.fingerprint


def test_text_files_and_export_are_the_same_data(tmp_path: Path) -> None:
    plain = tmp_path / "plain" / "multi30k"
    plain.mkdir(parents=True)
    for split, short in (("train", "train"), ("validation", "val"), ("test", "test")):
        for language, texts in zip(("en", "de"), PAIRS[split], strict=True):
            (plain / f"{short}.{language}").write_text("\n".join(texts) + "\n", encoding="utf-8")
    dataset, fingerprint, *_ = load_dataset("mt", write_pairs(tmp_path))
    assert load_dataset("mt", plain)[1] == fingerprint
    export_dataset("mt", dataset, tmp_path / "out")
    assert load_dataset("mt", tmp_path / "out")[1] == fingerprint


def test_sentences_end_with_their_line_alone(tmp_path: Path) -> None:
    """Corpora from the web have carriage returns and separators within sentences."""
    for split in PAIRS:
        (tmp_path / f"{split}.en").write_bytes("\ufeffa\rb\r\nc\u2028d\x0ce\r\n".encode())
        (tmp_path / f"{split}.de").write_bytes(b"a b\nc d e\n")
    task = load_task("mt", tmp_path)
    assert [decode(task.tokenizer, task.test.inputs[i]) for i in (0, 1)] == [
        ["a\rb", "c\u2028d\x0ce"],
        ["a b", "c d e"],
    ]


def test_long_pairs_are_not_trained_on_but_still_scored(tmp_path: Path) -> None:
    whole = load_task("mt", write_pairs(tmp_path))
    limit = int(whole.train.inputs[0].lengths.min())
    task = load_task("mt", write_pairs(tmp_path), max_len=limit)
    assert 0 < len(task.train) < len(whole.train)
    assert task.test.inputs[0].lengths.max() <= limit
    assert decode(task.tokenizer, task.test.inputs[1]) == PAIRS["test"][1]
    with pytest.raises(DataError, match=r"raise data\.max_len"):
        load_task("mt", write_pairs(tmp_path), max_len=1)


def test_copying_the_source_is_the_baseline(tmp_path: Path) -> None:
    task = load_task("mt", write_pairs(tmp_path))
    found = trivial_baselines("mt", task.train, task.test, task.tokenizer)
    assert found == {"copy of the source": bleu(*(list(side) for side in PAIRS["test"]))[0]}


def test_bleu_and_its_interval() -> None:
    hypotheses = ["the cat sat on the mat today", "a dog ran over the hill", "we all went home early"] * 10
    references = ["the cat sat on the mat today", "a dog ran over a hill", "they all went home late"] * 10
    score, low, high = bleu(hypotheses, references, resamples=200)
    assert low < score < high
    assert bleu(hypotheses, references) == (score, score, score)
    assert bleu(references, references, 100) == pytest.approx((100.0, 100.0, 100.0))
    assert bleu([""] * 30, references)[0] == 0.0


def test_decoding_stops_at_the_end() -> None:
    task = load_task("mt", "embedded")
    row = np.array([*task.test.inputs[1][0].tolist(), 7, 8, 0])
    assert decode(task.tokenizer, [row]) == decode(task.tokenizer, task.test.inputs[1])[:1]
    assert decode(task.tokenizer, PackedSequences.from_list([[END], [0]])) == ["", ""]


@pytest.mark.parametrize(
    ("number", "en", "de"),
    [
        (0, "zero", "null"),
        (1, "one", "eins"),
        (12, "twelve", "zwölf"),
        (17, "seventeen", "siebzehn"),
        (21, "twenty-one", "einundzwanzig"),
        (30, "thirty", "dreißig"),
        (101, "one hundred and one", "einhunderteins"),
        (423, "four hundred and twenty-three", "vierhundertdreiundzwanzig"),
        (1001, "one thousand and one", "eintausendeins"),
        (1100, "one thousand one hundred", "eintausendeinhundert"),
        (21_000, "twenty-one thousand", "einundzwanzigtausend"),
        (999_999, "nine hundred and ninety-nine thousand nine hundred and ninety-nine",
         "neunhundertneunundneunzigtausendneunhundertneunundneunzig"),
    ],
)  # fmt: skip
def test_numbers(number: int, en: str, de: str) -> None:
    assert (english(number), german(number)) == (en, de)


def test_numbers_are_all_different() -> None:
    for words in (english, german):
        assert len({words(n) for n in range(20_000)}) == 20_000
    assert generate_pairs(5, 1) == generate_pairs(5, 1) != generate_pairs(5, 2)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no sentence pairs in"),
        ({s: {"en": ["a"], "fr": ["b"]} for s in PAIRS}, "no column 'de'"),
        ({s: {"en": ["a", ""], "de": ["b", "c"]} for s in PAIRS}, "row 2 has no en text"),
        ({s: {"en": ["a", "b"], "de": ["b", None]} for s in PAIRS}, "row 2 has no de text"),
        ({s: {"en": [1], "de": ["b"]} for s in PAIRS}, "row 1 has no en text"),
    ],
)
def test_bad_pairs_are_named(tmp_path: Path, files: dict[str, dict[str, list[object]]], message: str) -> None:
    for split, columns in files.items():
        write_parquet(tmp_path / f"{split}.parquet", columns)
    with pytest.raises(DataError, match=message):
        load_task("mt", tmp_path)


def test_bad_text_files_are_named(tmp_path: Path) -> None:
    for split in PAIRS:
        (tmp_path / f"{split}.en").write_text("one\ntwo\n")
        (tmp_path / f"{split}.de").write_text("eins\n")
    with pytest.raises(DataError, match="2 sources and 1 targets"):
        load_task("mt", tmp_path)
    (tmp_path / "train.de").write_text("eins\n \nzwei\n")
    with pytest.raises(DataError, match="line 2 is empty"):
        load_task("mt", tmp_path)
    (tmp_path / "train.de").write_bytes(b"\xff\xfe\n")
    with pytest.raises(DataError, match="is not UTF-8"):
        load_task("mt", tmp_path)
