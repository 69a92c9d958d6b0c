"""How long the sentences of pages are: `python -m tests.prose [PAGE …]`; of one page the long ones too."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: What people read first; a page that they come to from there belongs here too.
READ = (
    "README.md",
    *(
        f"docs/{name}.md"
        for name in (
            *("training", "losses", "gradients", "resuming", "users", "sharp-edges"),
            *(
                "choosing",
                "measured",
                "selecting",
                "guarantees",
                "statement",
                "mechanisms",
                "streaming",
                "federated",
                "flower",
            ),
            *("fine-tuning", "frameworks", "linear", "audit"),
            *("streaming-operators", "theory", "extending", "federated-study", "many-devices"),
            *("start", "from-opacus", "reviewer"),
        )
    ),
)
#: Words in a sentence that a tired reader reads once.
LONG = 30


def sentences(text):
    """The sentences of a page, cells of tables among them; without code, headings, pictures and samples.

    What stands between marks such as `begin` and `end` of a comment was made by a program, and is left out. A
    cell, or an item of a list, ends a sentence; so do a full stop, a question and an exclamation mark.
    """
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!-- (\w+) -->.*?<!-- end.*? -->", "", text, flags=re.DOTALL)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`\n]*`", "Code", text)
    parts = [""]
    for line in text.splitlines():
        bare = line.strip()
        if not bare or bare.startswith(("#", "<", "!")):
            parts.append("")
        elif bare.startswith("|"):
            parts += bare.strip("|").split("|")
            parts.append("")
        elif re.match(r"([*-]|\d+\.)\s", bare):
            parts.append(re.sub(r"^([*-]|\d+\.)\s+", "", bare))
        else:
            parts[-1] += " " + bare
    for part in parts:
        for sentence in re.split(r"(?<=[.!?])[*_)]*\s+(?=[^a-z\s])|(?<=[.!?]\*\*)\s+", part):
            words = re.findall(r"\S*\w\S*", sentence)
            if len(words) > 3:
                yield len(words), sentence.strip()


def measured(text):
    """(sentences, words in one on average, share of those above 30 words)."""
    counts = [count for count, _ in sentences(text)]
    return len(counts), sum(counts) / len(counts), sum(count > LONG for count in counts) / len(counts)


def main(pages):
    for page in pages:
        text = Path(page).read_text("utf-8")
        number, mean, share = measured(text)
        print(f"{page}: {number} sentences, {mean:.1f} words each, {share:.1%} above {LONG}")
        if len(pages) == 1:
            for count, sentence in sorted(sentences(text), reverse=True):
                if count > LONG:
                    print(f"  {count}: {sentence}")


if __name__ == "__main__":
    main(sys.argv[1:] or [str(ROOT / page) for page in READ if (ROOT / page).exists()])
