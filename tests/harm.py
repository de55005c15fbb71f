"""What can happen to a folder with pets/ and the runs R (finished) and U (stopped short): a function for each harm."""

from __future__ import annotations

import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

from tests.pets import paint, pets


def text(name: str, content: str) -> Callable[[Path], None]:
    def write(here: Path) -> None:
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(content, encoding="utf-8")

    return write


def nothing(here: Path) -> None: ...


def gone(name: str) -> Callable[[Path], None]:
    return lambda here: shutil.rmtree(here / name)


def bomb(here: Path) -> None:
    """A PNG of some hundred bytes that says it has 81 million pixels."""
    header = struct.pack(">IIBBBBB", 9000, 9000, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"\0" * 100)), (b"IEND", b"")]
    parts = [struct.pack(">I", len(d)) + kind + d + struct.pack(">I", zlib.crc32(kind + d)) for kind, d in chunks]
    (here / "pets/labeled/cat/bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))


def unreadable(here: Path) -> None:
    (here / "pets/labeled/cat/empty.png").touch()
    (here / "pets/unlabeled/text.png").write_text("no image")
    whole = (here / "pets/test/dog/0.png").read_bytes()
    (here / "pets/test/dog/0.png").write_bytes(whole[: len(whole) // 2])


def empty_class(here: Path) -> None:
    (here / "pets/labeled/wolf").mkdir()


def one_class(here: Path) -> None:
    for folder in ("labeled/dog", "labeled/fox", "test"):
        shutil.rmtree(here / "pets" / folder)


def strange_class(here: Path) -> None:
    paint(here / "pets/test/wolf/0.png", "cat", 0)


def other_pets(here: Path) -> None:
    pets(here / "others")
    for part in ("labeled", "test"):
        (here / "others" / part / "fox").rename(here / "others" / part / "wolf")


def changed_image(here: Path) -> None:
    paint(here / "pets/labeled/cat/0.png", "dog", 999)


def damaged(*steps: int) -> Callable[[Path], None]:
    def damage(here: Path) -> None:
        for step in steps:
            (here / f"U/checkpoint/step-{step:08d}/state.safetensors").write_bytes(b"cut")

    return damage


def other_network(here: Path) -> None:
    """The run says that it has another network than its checkpoints."""
    config = here / "U/config.toml"
    config.write_text(config.read_text().replace('latent_dim = "none"', "latent_dim = 5"))


def config_without(line: str) -> Callable[[Path], None]:
    def drop(here: Path) -> None:
        config = here / "U/config.toml"
        config.write_text("".join(row for row in config.read_text().splitlines(True) if not row.startswith(line)))

    return drop


def no_model(here: Path) -> None:
    shutil.rmtree(here / "R/model")


def cut_model(here: Path) -> None:
    weights = here / "R/model/weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])


def long_split(here: Path) -> None:
    split = here / "U/split.json"
    split.write_text(split.read_text().replace('"test": [', '"test": [9999, '))


def outside(here: Path) -> None:
    paint(here / "secret.png", "cat", 1)
    text("table/pets.csv", "path,label\n../secret.png,cat\n/etc/passwd,dog\n")(here)
