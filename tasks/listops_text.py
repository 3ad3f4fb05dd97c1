"""ListOps as the release writes it: `Source<TAB>Target`, expressions with the parentheses of a binary tree.

`[MAX 4 3 ]` is written `( ( ( [MAX 4 ) 3 ) ] )`: one pair of parentheses for every step of applying the operator to
an argument and one for the closing bracket. Reading drops them; with them only a fifth of the rows fit 2,000 tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .dataset import DataError, Split
from .files import atomic_path
from .listops_trees import CLOSE, FIRST_DIGIT, FIRST_OPERATOR, OPERATORS, SYMBOLS
from .packed import PackedSequences

HEADER = b"Source\tTarget"
BLOCK_BYTES = 1 << 24

Bytes = NDArray[np.uint8]

# Token id of every byte that starts a token; an operator's is found from its third letter. 0: no token starts here.
_DIGIT = np.zeros(256, np.int16)
_DIGIT[np.frombuffer(b"0123456789", np.uint8)] = np.arange(FIRST_DIGIT, FIRST_DIGIT + 10)
_OPERATOR = np.zeros(256, np.int16)
for _number, _name in enumerate(OPERATORS):
    _OPERATOR[ord(_name[2])] = FIRST_OPERATOR + _number


def read_expressions(file: Path, content: bytes | None = None) -> Split:
    """Token ids and labels of a TSV file, or of `content` under that name, without or with header.

    Raises DataError naming file, row and remedy for anything that is not a ListOps expression with its value.
    """
    tokens, lengths, labels = [], [], []
    row = 1
    blocks = _blocks(file) if content is None else iter([content])
    for block in blocks:
        if row == 1 and block.split(b"\n", 1)[0].rstrip(b"\r") == HEADER:
            block = block.split(b"\n", 1)[1] if b"\n" in block else b""
            row += 1
        rows = block.replace(b"\r\n", b"\n").split(b"\n")
        if rows and not rows[-1]:
            rows.pop()
        if not rows:
            continue
        labels.append(_labels(rows, file, row))
        ids, count = _tokenise(rows, file, row)
        tokens.append(ids)
        lengths.append(count)
        row += len(rows)
    if not tokens:
        raise DataError(f"{file} holds no expressions; fetch or export it again")
    offsets = np.concatenate(([0], np.cumsum(np.concatenate(lengths))))
    return Split((PackedSequences.from_offsets(np.concatenate(tokens), offsets),), np.concatenate(labels))


def _blocks(file: Path) -> Iterator[bytes]:
    """The file in pieces of about BLOCK_BYTES that end with a line."""
    rest = b""
    with file.open("rb") as stream:
        while block := stream.read(BLOCK_BYTES):
            end = block.rfind(b"\n") + 1
            if end:
                yield rest + block[:end]
                rest = block[end:]
            else:
                rest += block
    if rest:
        yield rest


def _labels(rows: list[bytes], file: Path, first_row: int) -> NDArray[np.int64]:
    for number, row in enumerate(rows, first_row):
        source, tab, target = row.partition(b"\t")
        if not tab:
            raise DataError(f"{file}: row {number} has no tab between Source and Target; the row is cut short")
        if len(target) != 1 or not target.isdigit():
            shown = target[:20].decode("utf-8", "replace")
            raise DataError(f"{file}: row {number} has Target {shown!r}; expected one digit")
        if not source.strip(b" ()"):
            raise DataError(f"{file}: row {number} has no expression; remove it")
    return np.array([row[-1] - ord("0") for row in rows], np.int64)


def _tokenise(rows: list[bytes], file: Path, first_row: int) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """Ids of all rows end to end and how many each has; anything unexpected is looked up row by row for the message."""
    joined = b"\n".join(row.partition(b"\t")[0] for row in rows) + b"\n"
    text = np.frombuffer(joined + b"    ", np.uint8)
    body = text[:-4]
    opening, closing = body == ord("["), body == ord("]")
    ids = _DIGIT[body]
    ids[opening] = _OPERATOR[text[2:-2][opening]]
    ids[closing] = CLOSE
    # Every byte must belong to a token, and every token stand alone; its letters are compared as whole words.
    word_start = (ids > 0) & np.isin(np.concatenate(([ord(" ")], body[:-1])), np.frombuffer(b" (\n", np.uint8))
    words = np.zeros(len(body), bool)
    words[word_start] = True
    for number, name in enumerate(OPERATORS):
        at = np.flatnonzero(opening & (ids == FIRST_OPERATOR + number))
        good = np.ones(len(at), bool)
        for place, letter in enumerate(name.encode()):
            good &= text[at + place] == letter
            words[at[good] + place] = True
        good &= np.isin(text[at + len(name)], np.frombuffer(b" )\n", np.uint8))
        words[at[~good]] = False
    space = np.isin(body, np.frombuffer(b" ()\n", np.uint8))
    depth = np.cumsum(opening.astype(np.int32) - closing.astype(np.int32))
    ends = np.flatnonzero(body == ord("\n"))
    token = np.flatnonzero(ids > 0)
    row_end = np.searchsorted(token, ends)  # number of tokens up to the end of each row
    # One expression a row: its last token, and no other, closes the outermost bracket; no operator without arguments.
    outermost = np.flatnonzero(closing & (depth == 0))
    empty = opening[token[:-1]] & closing[token[1:]]
    outside = (depth == 0) & (ids > 0) & ~closing
    sound = np.array_equal(outermost, token[row_end - 1]) and not empty.any() and not outside.any()
    if not (sound and (words ^ space).all() and not depth[ends].any() and not (depth < 0).any()):
        for number, row in enumerate(rows, first_row):
            _explain(row.partition(b"\t")[0], file, number)
    return ids[token], np.diff(row_end, prepend=0).astype(np.int64)


def _explain(source: bytes, file: Path, row: int) -> None:
    """Raise DataError for what is wrong with one expression, if anything is."""
    depth, several = 0, False
    words = source.replace(b"(", b" ").replace(b")", b" ").decode("utf-8", "replace").split()
    for place, word in enumerate(words):
        if word not in SYMBOLS:
            raise DataError(f"{file}: row {row} has {word[:20]!r}; expected digits 0 to 9, {', '.join(OPERATORS)} or ]")
        if word == "]" and place and words[place - 1] in OPERATORS:
            raise DataError(f"{file}: row {row} has {words[place - 1]} without arguments; it is damaged")
        depth += word.startswith("[") - (word == "]")
        if depth < 0:
            raise DataError(f"{file}: row {row} closes more brackets than it opens; it is damaged")
        several |= depth == 0 and place < len(words) - 1
    if depth:
        raise DataError(f"{file}: row {row} leaves {depth} brackets open; it is cut short")
    if several:
        raise DataError(f"{file}: row {row} has several expressions; it is damaged")


def write_expressions(file: Path, split: Split) -> None:
    """Write the release's layout, atomically."""
    (sequences,) = split.inputs
    with atomic_path(file) as temporary, temporary.open("wb") as stream:
        stream.write(HEADER + b"\n")
        for first in range(0, len(split), 2_000):
            chosen = range(first, min(first + 2_000, len(split)))
            stream.write(_text([sequences[i] for i in chosen], split.labels[first : chosen.stop]))


def _text(expressions: list[NDArray[np.integer]], labels: NDArray[np.int64]) -> bytes:
    tokens = np.concatenate(expressions).astype(np.int64)
    last = np.cumsum([len(e) for e in expressions]) - 1
    opening, closing = (tokens >= FIRST_OPERATOR) & (tokens < CLOSE), tokens == CLOSE
    depth = np.cumsum(opening.astype(np.int64)) - np.cumsum(closing)  # after the token
    # An argument's operator is the last one opened one level above it: find it level by level.
    arguments = np.zeros(len(tokens), np.int64)
    level = np.where(opening, depth - 1, depth)  # of the list that a digit or operator is an argument of
    for above in range(1, int(depth.max()) + 1):
        operators = np.flatnonzero(opening & (depth == above))
        inner = np.flatnonzero(~closing & (level == above))
        arguments += np.bincount(operators[np.searchsorted(operators, inner) - 1], minlength=len(tokens))
    most = int(arguments.max()) + 1
    pieces = [b"%d ) " % digit for digit in range(10)]
    pieces += [b"( " * (k + 1) + name.encode() + b" " for name in OPERATORS for k in range(most)]
    pieces += [b"] ) ) "]
    code = np.where(opening, 10 + (tokens - FIRST_OPERATOR) * most + arguments, tokens - FIRST_DIGIT)
    code[closing] = len(pieces) - 1
    words = np.array(pieces, dtype=object)[code]
    for end, label in zip(last.tolist(), labels.tolist(), strict=True):
        outermost = b"] )" if closing[end] else b"%d" % (tokens[end] - FIRST_DIGIT)  # a digit alone is a tree as well
        words[end] = outermost + b"\t%d\n" % label
    return b"".join(words.tolist())
