"""Archives stay in their folder: hostile ones write nothing, honest ones come out whole."""

import io
import os
import stat
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from cbml.data.archives import Limits, extract, folder_of
from cbml.errors import BadData

Maker = Callable[[Path], None]


def tar_with(*members: tuple[tarfile.TarInfo, bytes], mode: str = "w:gz") -> Maker:
    def make(path: Path) -> None:
        with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
            for member, content in members:
                member.size = len(content) if member.isreg() else 0
                archive.addfile(member, io.BytesIO(content))

    return make


def entry(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type = kind
    member.linkname = target
    return member


def zip_with(*names: str, mode: int = 0) -> Maker:
    def make(path: Path) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in names:
                member = zipfile.ZipInfo(name)
                member.filename = name  # the constructor would mend it
                member.external_attr = mode << 16
                archive.writestr(member, b"x")

    return make


def patched_zip(place: bytes, offset: int, value: bytes) -> Maker:
    """An honest zip in which some bytes behind the last `place` were changed."""

    def make(path: Path) -> None:
        zip_with("a.jpg")(path)
        content = bytearray(path.read_bytes())
        start = content.rfind(place) + offset
        content[start : start + len(value)] = value
        path.write_bytes(content)

    return make


def link_then_file(path: Path) -> None:
    tar_with((entry("inside", tarfile.SYMTYPE, ".."), b""), (entry("inside/evil.jpg"), b"x"))(path)


def giant_header(path: Path) -> None:
    """A tar header that announces seven gigabytes of notes about one file."""
    member = tarfile.TarInfo("notes")
    member.type = tarfile.XHDTYPE
    member.size = 7 << 30
    path.write_bytes(member.tobuf(tarfile.USTAR_FORMAT) + bytes(10_240))


class Zeros:
    def read(self, size: int) -> bytes:
        return bytes(size)


def swelling_tar(path: Path) -> None:
    with tarfile.open(path, "w:gz", compresslevel=9) as archive:
        member = tarfile.TarInfo("zeros.jpg")
        member.size = 150 << 20
        archive.addfile(member, Zeros())  # type: ignore[arg-type]


def swelling_zip(path: Path) -> None:
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("zeros.jpg", "w") as output,
    ):
        for _ in range(150):
            output.write(bytes(1 << 20))


def bytes_in(content: bytes) -> Maker:
    return lambda path: path.write_bytes(content) and None


def many_entries(path: Path) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for number in range(3_000):
            archive.addfile(entry(f"{number}.jpg"))


def sparse(path: Path) -> None:
    member = tarfile.TarInfo("sparse.jpg")
    member.pax_headers = {
        "GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.name": "sparse.jpg",
        "GNU.sparse.size": str(1 << 40), "GNU.sparse.map": "0,1",
    }  # fmt: skip
    member.size = 1
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(member, io.BytesIO(b"x"))


def truncated(path: Path) -> None:
    tar_with((entry("a.jpg"), os.urandom(100_000)))(path)
    path.write_bytes(path.read_bytes()[:60_000])


# name -> (file name, how it is made, what the refusal says)
HOSTILE: dict[str, tuple[str, Maker, str]] = {
    "tar ..": ("a.tgz", tar_with((entry("../evil.jpg"), b"x")), "leads out"),
    "tar .. inside": ("a.tgz", tar_with((entry("a/../../evil.jpg"), b"x")), "leads out"),
    "tar absolute": ("a.tgz", tar_with((entry("/tmp/evil.jpg"), b"x")), "leads out"),
    "tar only ..": ("a.tgz", tar_with((entry("..", tarfile.DIRTYPE), b"")), "leads out"),
    "tar backslash": ("a.tgz", tar_with((entry("..\\evil.jpg"), b"x")), "leads out"),
    "tar drive": ("a.tgz", tar_with((entry("C:/evil.jpg"), b"x")), "leads out"),
    "tar symbolic link": ("a.tgz", tar_with((entry("l", tarfile.SYMTYPE, "/etc"), b"")), "a link"),
    "tar link upwards": ("a.tgz", tar_with((entry("l", tarfile.SYMTYPE, ".."), b"")), "a link"),
    "tar write through a link": ("a.tgz", link_then_file, "a link"),
    "tar hard link": ("a.tgz", tar_with((entry("l", tarfile.LNKTYPE, "/etc/x"), b"")), "a link"),
    "tar character device": ("a.tgz", tar_with((entry("d", tarfile.CHRTYPE), b"")), "a device"),
    "tar block device": ("a.tgz", tar_with((entry("d", tarfile.BLKTYPE), b"")), "a device"),
    "tar fifo": ("a.tgz", tar_with((entry("d", tarfile.FIFOTYPE), b"")), "a device"),
    "tar sparse": ("a.tar", sparse, "a link or a device"),
    "tar giant header": ("a.tar", giant_header, "a header of"),
    "tar swells": ("a.tgz", swelling_tar, "unpacks to more than"),
    "tar many entries": ("a.tgz", many_entries, "more than 1,000 entries"),
    "tar very deep": ("a.tgz", tar_with((entry("a/" * 60 + "b.jpg"), b"x")), "leads out"),
    "tar long name": ("a.tgz", tar_with((entry("a" * 300), b"x")), "leads out"),
    "tar one name twice": (
        "a.tgz", tar_with((entry("a.jpg"), b"1"), (entry("a.jpg"), b"2")), "two entries have"
    ),
    "tar file as folder": (
        "a.tgz", tar_with((entry("a"), b"1"), (entry("a/b.jpg"), b"2")), "two entries have"
    ),
    "tar truncated": ("a.tgz", truncated, "not an intact archive"),
    "tar of noise": ("a.tgz", bytes_in(b"\x1f\x8b" + bytes(99)), "archive|unpacked"),
    "no archive": ("a.tar", bytes_in(b"hello" * 500), "archive"),
    "empty file": ("a.zip", bytes_in(b""), "archive"),
    "zip ..": ("a.zip", zip_with("../evil.jpg"), "leads out"),
    "zip absolute": ("a.zip", zip_with("/tmp/evil.jpg"), "leads out"),
    "zip .. inside": ("a.zip", zip_with("a/../../evil.jpg"), "leads out"),
    "zip symbolic link": ("a.zip", zip_with("l", mode=stat.S_IFLNK | 0o777), "a link"),
    "zip device": ("a.zip", zip_with("d", mode=stat.S_IFCHR | 0o666), "a device"),
    "zip fifo": ("a.zip", zip_with("d", mode=stat.S_IFIFO | 0o666), "a device"),
    "zip swells": ("a.zip", swelling_zip, "unpacks to more than"),
    "zip many entries": ("a.zip", zip_with(*map(str, range(1_001))), "more than 1,000 entries"),
    "zip one name twice": ("a.zip", zip_with("a.jpg", "./a.jpg"), "two entries have"),
    "zip encrypted": ("a.zip", patched_zip(b"PK\x01\x02", 8, b"\x01\x00"), "encrypted"),
    "zip checksum": ("a.zip", patched_zip(b"PK\x01\x02", 16, b"\1\2\3\4"), "not an intact archive"),
    "zip giant list": (
        "a.zip", patched_zip(b"PK\x05\x06", 12, struct.pack("<I", 1 << 30)), "list of members"
    ),
    "zip unknown compression": ("a.zip", patched_zip(b"PK\x01\x02", 10, b"\x63\x00"), "unpacked"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives_write_nothing(name: str, tmp_path: Path) -> None:
    file, make, reason = HOSTILE[name]
    home = tmp_path / "home"
    (home / "in").mkdir(parents=True)
    archive = home / file
    make(archive)
    before = {path: path.lstat().st_size for path in tmp_path.rglob("*")}
    with pytest.raises(BadData, match=reason) as caught:
        extract(archive, home / "in" / "out", limits=Limits(entries=1_000))
    assert str(archive) in str(caught.value)
    assert {path: path.lstat().st_size for path in tmp_path.rglob("*")} == before
    assert not Path("/tmp/evil.jpg").exists()


def test_there_are_thirty_hostile_archives() -> None:
    assert len(HOSTILE) >= 30


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


CONTENT = {"set/a/1.jpg": os.urandom(70_000), "set/b/ü 2.jpg": b"", "set/b/3.jpg": b"z" * 512}


@pytest.mark.parametrize("suffix", ["tgz", "tar", "tar.gz", "tar.bz2", "tar.xz", "zip"])
def test_honest_archives_come_out_whole(suffix: str, tmp_path: Path) -> None:
    archive = tmp_path / f"images.{suffix}"
    if suffix == "zip":
        with zipfile.ZipFile(archive, "w") as opened:
            opened.mkdir("set")
            for name, content in CONTENT.items():
                opened.writestr(name, content)
    else:
        mode = {"tgz": "w:gz", "tar": "w"}.get(suffix, f"w:{suffix[4:]}")
        members = [(entry("./", tarfile.DIRTYPE), b""), (entry("set", tarfile.DIRTYPE), b"")]
        members += [(entry(name), content) for name, content in CONTENT.items()]
        tar_with(*members, mode=mode)(archive)
    extract(archive, tmp_path / "out")
    assert tree(tmp_path / "out") == CONTENT
    executable = [path for path in (tmp_path / "out").rglob("*.jpg") if os.access(path, os.X_OK)]
    assert not executable


def test_an_archive_is_unpacked_once_and_again_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CBML_CACHE", str(tmp_path / "cache"))
    archive = tmp_path / "images.zip"
    zip_with("a.jpg")(archive)
    first = folder_of(archive)
    assert folder_of(archive) == first
    assert tree(first) == {"a.jpg": b"x"}
    zip_with("a.jpg", "b.jpg")(archive)
    assert tree(folder_of(archive)) == {"a.jpg": b"x", "b.jpg": b"x"}
    assert folder_of(tmp_path) == tmp_path


UNPACKER = """
import sys
from pathlib import Path
from cbml.data.archives import folder_of
print("ready", flush=True)
print(folder_of(Path(sys.argv[1])))
"""


def test_a_killed_unpacking_leaves_nothing_half_done(tmp_path: Path) -> None:
    archive = tmp_path / "images.tgz"
    content = {f"set/{number}.jpg": os.urandom(2_000) for number in range(3_000)}
    tar_with(*((entry(name), data) for name, data in content.items()))(archive)
    environment = {**os.environ, "CBML_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", UNPACKER, str(archive)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    assert child.stdout is not None
    with child.stdout as output:
        output.readline()
        try:
            child.wait(0.05)
        except subprocess.TimeoutExpired:
            child.kill()
        child.wait()
    found = subprocess.run(command, capture_output=True, env=environment, check=True, text=True)
    assert tree(Path(found.stdout.splitlines()[1])) == content
    assert not list((tmp_path / "cache").rglob("*.part"))


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_every_damaged_byte_of_a_compressed_archive_is_bad_data(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"set.tar.{kind}"
    content = bytes(range(250)) * 12
    with tarfile.open(path, f"w:{kind}") as archive:
        for number in range(3):
            archive.addfile(entry_of(f"a/{number}.png", 3_000), io.BytesIO(content))
    sound = path.read_bytes()
    refused = 0
    for place in range(0, len(sound), max(1, len(sound) // 60)):
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 0x55]) + sound[place + 1 :])
        target = tmp_path / f"out{place}"
        try:
            extract(path, target)
        except BadData:
            refused += 1
            assert not target.exists()
        else:  # in what is only for people, such as the time in the head of a gzip file
            assert [file.read_bytes() for file in target.rglob("*.png")] == [content] * 3
    assert refused > 30
    path.write_bytes(sound[: len(sound) // 2])
    with pytest.raises(BadData):
        extract(path, tmp_path / "half")


def test_a_damaged_header_is_not_taken_for_the_end(tmp_path: Path) -> None:
    path = tmp_path / "set.tar"
    with tarfile.open(path, "w") as archive:
        for number in range(3):
            archive.addfile(entry_of(f"a/{number}.png", 512), io.BytesIO(bytes(512)))
    sound = path.read_bytes()
    second = 2 * tarfile.BLOCKSIZE
    for content in (
        sound[:second] + b"x" + sound[second + 1 :],  # one byte in the second name
        sound[: 2 * second],  # cut between two files
        sound[: 2 * second + 100],  # cut within a header
    ):
        path.write_bytes(content)
        with pytest.raises(BadData, match="cut off before its end"):
            extract(path, tmp_path / "out")
        assert not (tmp_path / "out").exists()


def entry_of(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = size
    return member
