"""Translation: Multi30k or any pairs of sentences (`mt`), and WMT'14 as in the RFA paper (`wmt14-de`, `wmt14-fr`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .dataset import DataError, Dataset, Split
from .files import folder_name
from .packed import PackedSequences
from .parquet import read_columns, write_parquet
from .registry import HubSource, TaskLoader, register_task
from .synthetic_numbers import generate_pairs

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPLITS = ("train", "validation", "test")
EMBEDDED = "numbers-synthetic"
EMBEDDED_SIZES = {"train": 20_000, "validation": 500, "test": 1_000}
# Token ids of every translation task; 0 is padding.
BEGIN, END = 1, 2
_SPECIAL = ["<pad>", "<s>", "</s>"]

Pairs = tuple[list[str], list[str]]


@register_task("mt")
@register_task("wmt14-de")
@register_task("wmt14-fr")
class Translation(TaskLoader):
    """Pairs of sentences as subword tokens of one vocabulary, byte-level BPE learned on train (Sennrich et al. 2016).

    Reads {train,validation,test}.parquet with a column per language, or text files train.en, train.de and so on with
    one sentence a line. A source ends with END; a target begins with BEGIN and ends with END.
    """

    @property
    def languages(self) -> tuple[str, str]:
        """The columns, from and to."""
        if self.spec.languages is None:
            raise DataError("a translation task's YAML needs languages, such as [en, de]")
        return self.spec.languages

    def find(self, folder: Path) -> list[Path]:
        hub = "-".join(("wmt14", *self.languages))
        for base in (folder, *(folder / name for name in ("multi30k", "wmt14", hub, EMBEDDED))):
            tables = [base / f"{split}.parquet" for split in SPLITS]
            if all(file.is_file() for file in tables):
                return tables
            for names in (SPLITS, ("train", "valid", "test"), ("train", "val", "test")):
                texts = [base / f"{name}.{language}" for name in names for language in self.languages]
                if all(file.is_file() for file in texts):
                    return texts
        source, target = self.languages
        raise DataError(
            f"no sentence pairs in {folder}: expected {{train,validation,test}}.parquet with the columns {source} and"
            f" {target}, or text files train.{source}, train.{target} and so on"
        )

    def read(self, files: list[Path]) -> Dataset:
        name = folder_name(files[0])
        if files[0].suffix == ".parquet":
            return self._encode(name, {split: self._read(f) for split, f in zip(SPLITS, files, strict=True)})
        lines = [_read_lines(file) for file in files]
        return self._encode(name, {split: (lines[2 * i], lines[2 * i + 1]) for i, split in enumerate(SPLITS)})

    def download(self, hub: HubSource) -> Dataset:
        import datasets

        sets = datasets.load_dataset(hub.repo, hub.subset, revision=hub.revision)
        pairs = {}
        for split in SPLITS:
            column = sets[split].with_format("arrow").data.column("translation").combine_chunks()
            pairs[split] = tuple(column.field(language).to_pylist() for language in self.languages)
        return self._encode("-".join(("wmt14", *self.languages)), pairs)

    def generate(self) -> Dataset:
        pairs = {split: generate_pairs(size, seed) for seed, (split, size) in enumerate(EMBEDDED_SIZES.items())}
        return self._encode(EMBEDDED, pairs)

    def export(self, dataset: Dataset, folder: Path) -> list[Path]:
        files = []
        for name, split in dataset.splits.items():
            columns = {
                language: decode(dataset.tokenizer, sequences)
                for language, sequences in zip(self.languages, split.inputs, strict=True)
            }
            files.append(write_parquet(folder / dataset.name / f"{name}.parquet", columns))
        return files

    def prepare(self, name: str, split: Split, max_len: int) -> Split:
        """Train without pairs over max_len tokens; elsewhere sources are cut, but what is scored stays whole."""
        source, target = split.inputs
        if name == "train":
            # The first token of a target is never predicted, so that one more fits.
            kept = np.flatnonzero((source.lengths <= max_len) & (target.lengths <= max_len + 1))
            if not len(kept):
                raise DataError(f"no training pair has at most {max_len} tokens; raise data.max_len")
            return split.select(kept)
        return Split((source.truncate(max_len), target), split.labels)

    def baselines(self, train: Split, test: Split, tokenizer: str) -> dict[str, float]:
        source, target = (decode(tokenizer, sequences) for sequences in test.inputs)
        return {"copy of the source": bleu(source, target)[0]}

    def _read(self, file: Path) -> Pairs:
        table = read_columns(file, list(self.languages))
        columns = [table.column(language).to_pylist() for language in self.languages]
        for language, column in zip(self.languages, columns, strict=True):
            row = next((i for i, text in enumerate(column, 1) if not isinstance(text, str) or not text.strip()), None)
            if row:
                raise DataError(f"{file}: row {row} has no {language} text; fill it in or remove it")
        return columns[0], columns[1]

    def _encode(self, name: str, pairs: dict[str, Pairs]) -> Dataset:
        for split, (source, target) in pairs.items():
            if len(source) != len(target):
                raise DataError(f"{split} has {len(source):,} sources and {len(target):,} targets; expected as many")
        tokenizer = _learn(pairs["train"], self.spec.vocab_size)
        splits = {}
        for split, (source, target) in pairs.items():
            inputs = (_pack(tokenizer, source, []), _pack(tokenizer, target, [BEGIN]))
            splits[split] = Split(inputs, np.zeros(len(source), np.int64))
        return Dataset(name, splits, tokenizer.to_str())


def _learn(pairs: Pairs, vocab_size: int) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((text for side in pairs for text in side), trainer)
    return tokenizer


def _pack(tokenizer: Tokenizer, texts: list[str], begin: list[int]) -> PackedSequences:
    def tokens() -> Iterator[list[int]]:
        for start in range(0, len(texts), 10_000):
            for encoding in tokenizer.encode_batch_fast(texts[start : start + 10_000]):
                yield [*begin, *encoding.ids, END]

    return PackedSequences.from_list(tokens())


def decode(tokenizer: str, sequences: PackedSequences | list[NDArray[np.integer]]) -> list[str]:
    """The texts behind token sequences: up to END, without the special tokens. tokenizer: a data set's."""
    from tokenizers import Tokenizer

    rows = []
    for i in range(len(sequences)):
        row: list[int] = sequences[i].tolist()
        rows.append(row[: row.index(END)] if END in row else row)
    return Tokenizer.from_str(tokenizer).decode_batch(rows, skip_special_tokens=True)


def bleu(hypotheses: list[str], references: list[str], resamples: int = 0) -> tuple[float, float, float]:
    """sacreBLEU's corpus BLEU (Post 2018; 13a tokens, mixed case) and its 95 % interval by the bootstrap (Koehn 2004).

    resamples: of the bootstrap; without any both bounds are the score itself.
    """
    from sacrebleu.metrics.bleu import BLEU

    scored = BLEU().corpus_score(hypotheses, [references], n_bootstrap=max(1, resamples))
    if not resamples:
        return scored.score, scored.score, scored.score
    return scored.score, max(0.0, scored.score - scored._ci), min(100.0, scored.score + scored._ci)


def bleu_items(hypotheses: list[str], references: list[str]) -> NDArray[np.float64]:
    """What every sentence adds to the corpus's BLEU: matching n-grams and n-grams of n = 1 to 4, both lengths.

    `[num_sentences, 10]`; see `bleu_of_sums`.
    """
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(effective_order=True)  # else it warns that one sentence alone has no BLEU, which is not what we ask
    found = (metric.sentence_score(text, [reference]) for text, reference in zip(hypotheses, references, strict=True))
    return np.array([[*s.counts, *s.totals, s.sys_len, s.ref_len] for s in found], np.float64).reshape(-1, 10)


def bleu_of_sums(sums: NDArray[np.float64]) -> float:
    """The corpus's BLEU, as `bleu` gives it, from the sum over its sentences of `bleu_items`, `[10]`."""
    from sacrebleu.metrics.bleu import BLEU

    counts = [round(number) for number in sums.tolist()]
    return float(BLEU.compute_bleu(counts[:4], counts[4:8], counts[8], counts[9], smooth_method="exp").score)


def _read_lines(file: Path) -> list[str]:
    """The lines, which end with a line feed alone: a carriage return or a Unicode separator is part of a sentence."""
    try:
        lines = file.read_bytes().decode("utf-8-sig").replace("\r\n", "\n").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8 (byte {error.start}); convert it") from None
    if blank := next((number for number, line in enumerate(lines, 1) if not line.strip()), None):
        raise DataError(f"{file}: line {blank} is empty; remove it in both languages")
    return lines
