"""The one reader: whatever a file holds, it ends in bytes within limits or in one typed error."""

from __future__ import annotations

import json
import math
import os
import zipfile
from pathlib import Path

import pytest

from superopt.errors import FileLimitError, InputError, ModelFileError
from superopt.files.reading import (
    DIGESTS,
    Allowance,
    Archive,
    ArchiveWriter,
    FileLimits,
    bytes_of,
    cause_of,
    digest,
    field,
    json_of,
    plain_file,
    shown,
    text_file,
    text_of,
    typed,
)


def write(path: Path) -> Path:
    with ArchiveWriter(path) as out:
        out.text("a.txt", "some text " * 20)
        out.aligned("b", memoryview(bytes(range(256))))
        out.aligned("c", memoryview(b"zyx"))
        out.json("d.json", {"x": [1, 2]})
    return path


def filled(archive: Archive, name: str, size: int) -> bytes:
    buffer = bytearray(size)
    archive.read_into(name, memoryview(buffer))
    return bytes(buffer)


def known(name: str) -> bool:
    return name in ("a.txt", "b", "c", "d.json")


def test_archives_come_back(tmp_path: Path) -> None:
    path = write(tmp_path / "x.zip")
    with plain_file(path) as handle:
        archive = Archive(handle, known)
        assert archive.names == ("a.txt", "b", "c", "d.json")
        assert archive.text("a.txt") == "some text " * 20
        assert archive.json("d.json") == {"x": [1, 2]}
        for name, data in (("b", bytes(range(256))), ("c", b"zyx")):
            assert filled(archive, name, len(data)) == data == archive.read(name)
            assert path.read_bytes().index(data) % 64 == 0
        for name, size, text in (("a.txt", 200, "packed"), ("b", 255, "needs 255"), ("z", 1, "holds no")):
            with pytest.raises(InputError, match=text):
                filled(archive, name, size)
    assert [p.name for p in tmp_path.iterdir()] == ["x.zip"]


def test_writing_that_fails_leaves_the_file_of_before(tmp_path: Path) -> None:
    path = write(tmp_path / "x.zip")
    before = path.read_bytes()

    def half() -> None:
        with ArchiveWriter(path) as out:
            out.text("a.txt", "half")
            raise OSError(28, "no space left")

    with pytest.raises(OSError, match="no space left"):
        half()
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["x.zip"]


def test_every_single_byte_of_an_archive_may_be_wrong(tmp_path: Path) -> None:
    """A changed byte is noticed, or changes nothing that is read."""
    whole = write(tmp_path / "x.zip").read_bytes()
    path = tmp_path / "y.zip"
    refused = 0
    for at in range(0, len(whole), 3):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        try:
            with plain_file(path) as handle:
                archive = Archive(handle, known)
                assert archive.json("d.json") == {"x": [1, 2]}
                assert archive.text("a.txt") == "some text " * 20
                assert filled(archive, "b", 256) == bytes(range(256))
        except InputError:
            refused += 1
    assert refused > len(whole) // 10


def rewritten(path: Path, change: dict[str, bytes], names: dict[str, str] | None = None) -> Path:
    """The archive with other members, by someone who writes digests too."""
    with zipfile.ZipFile(path) as archive:
        held = {name: archive.read(name) for name in archive.namelist() if name != DIGESTS}
    held |= change
    target = path.with_name("changed.zip")
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as out:
        for name, data in held.items():
            out.writestr(name, data)
        out.writestr(DIGESTS, json.dumps(names or {name: digest(name, data) for name, data in held.items()}))
    return target


def read_all(path: Path) -> None:
    with plain_file(path) as handle:
        archive = Archive(handle, known)
        for name in archive.names:
            archive.text(name) if name == "a.txt" else archive.read(name)


def test_archives_are_refused_for_what_they_hold(tmp_path: Path) -> None:
    path = write(tmp_path / "x.zip")
    with zipfile.ZipFile(path) as archive:
        digests = json.loads(archive.read(DIGESTS))
    swapped = {**digests, "b": digests["c"], "c": digests["b"]}
    for change, names, text in (
        ({"e.txt": b"no part of it"}, None, "no part of the format"),
        ({"../../etc/x": b"outside"}, None, "no part of the format"),
        ({"a.txt": b"other"}, digests, "not what its digest says"),
        ({"b": b"zyx", "c": bytes(range(256))}, swapped, "not what its digest says"),
        ({"a.txt": b"\xff\xfe"}, None, "not text"),
        ({"a.txt": bytes(2**22)}, None, "unpack to more than"),
        ({}, {"a.txt": "x"}, "names other members"),
    ):
        with pytest.raises(InputError, match=text):
            read_all(rewritten(path, change, names))


def test_archives_have_digests_of_few_members(tmp_path: Path) -> None:
    path = write(tmp_path / "x.zip")
    with plain_file(path) as handle, pytest.raises(FileLimitError, match="5 members; at most 4"):
        Archive(handle, known, FileLimits(members=4))
    with zipfile.ZipFile(tmp_path / "none.zip", "w") as out:
        out.writestr("a.txt", "text")
    with plain_file(tmp_path / "none.zip") as handle, pytest.raises(InputError, match="holds no digests"):
        Archive(handle, known)


def test_archives_hold_a_member_once_and_open(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "twice.zip", "w") as out:
        for name in ("a.txt", DIGESTS):
            out.writestr(name, "{}")
        with pytest.warns(UserWarning, match="Duplicate"):
            out.writestr("a.txt", "{}")
    with plain_file(tmp_path / "twice.zip") as handle, pytest.raises(InputError, match=r"'a.txt' twice"):
        Archive(handle, known)
    for kind, text in ((zipfile.ZIP_BZIP2, "packed in a way"), (zipfile.ZIP_LZMA, "packed in a way")):
        with zipfile.ZipFile(tmp_path / "packed.zip", "w", kind) as out:
            out.writestr("a.txt", "text")
        with plain_file(tmp_path / "packed.zip") as handle, pytest.raises(InputError, match=text):
            Archive(handle, known)
    whole = bytearray(write(tmp_path / "x.zip").read_bytes())
    for at in (whole.index(b"PK\x03\x04") + 6, whole.index(b"PK\x01\x02") + 8):
        whole[at] |= 1
    (tmp_path / "locked.zip").write_bytes(whole)
    with plain_file(tmp_path / "locked.zip") as handle, pytest.raises(InputError, match="is encrypted"):
        Archive(handle, known)


def test_members_have_the_size_that_they_state(tmp_path: Path) -> None:
    path = write(tmp_path / "x.zip")
    with plain_file(path) as handle:
        archive = Archive(handle, known)
        archive.limits = FileLimits(text_bytes=150)
        with pytest.raises(FileLimitError, match=r"'a.txt' has more than 150 bytes"):
            archive.read("a.txt")
        with pytest.raises(InputError, match="holds no 'z'"):
            archive.read("z")
    whole = path.read_bytes()
    at = whole.rindex(b"PK\x01\x02", 0, whole.rindex(b"a.txt")) + 24  # the size that its list of members states
    (tmp_path / "stated.zip").write_bytes(whole[:at] + (201).to_bytes(4, "little") + whole[at + 4 :])
    with plain_file(tmp_path / "stated.zip") as handle, pytest.raises(InputError, match="not the size that it states"):
        Archive(handle, known).read("a.txt")
    with zipfile.ZipFile(path) as held:
        at = held.getinfo("b").header_offset
    (tmp_path / "headless.zip").write_bytes(whole[:at] + b"XK" + whole[at + 2 :])
    with plain_file(tmp_path / "headless.zip") as handle, pytest.raises(InputError, match="damaged: no header"):
        filled(Archive(handle, known), "b", 256)
    with plain_file(path) as handle:
        archive = Archive(handle, known)
        for name, size in (("c", 2), ("c", 4)):
            with pytest.raises(InputError, match=r"'c' has 3 bytes, the program needs"):
                filled(archive, name, size)
        archive._begin = lambda row: len(whole) - 100  # type: ignore[method-assign]
        with pytest.raises(InputError, match="ends too soon"):
            filled(archive, "b", 256)
        archive._begin = lambda row: 0  # type: ignore[method-assign]
        with pytest.raises(InputError, match="not what its digest says"):
            filled(archive, "b", 256)


def test_weights_are_read_from_members_that_are_not_packed(tmp_path: Path) -> None:
    """Of a packed member the bytes in the file are not those that its digest is of, though the sizes may agree."""
    path = write(tmp_path / "x.zip")
    for changed in ({"compress_type": zipfile.ZIP_DEFLATED}, {"compress_size": 255}):
        with plain_file(path) as handle:
            archive = Archive(handle, known)
            for name, value in changed.items():
                setattr(archive._members["b"], name, value)
            with pytest.raises(InputError, match="is packed, and should not be"):
                filled(archive, "b", 256)


def test_archives_as_large_as_their_limits_are_read(tmp_path: Path) -> None:
    with plain_file(write(tmp_path / "x.zip")) as handle:
        archive = Archive(handle, known, FileLimits(members=5))
        archive.limits = FileLimits(text_bytes=256)
        assert archive.read("b") == bytes(range(256))
    least = 2**16  # bytes of contents that any archive may have
    for more in (0, 1):
        with ArchiveWriter(tmp_path / "y.zip") as out:
            out.text("a.txt", bytes(least + more - len(json.dumps({"a.txt": digest("a.txt", b"")}))))
        with plain_file(tmp_path / "y.zip") as handle:
            if more:
                with pytest.raises(FileLimitError, match="unpack to more than 0 times"):
                    Archive(handle, known, FileLimits(inflated=0))
            else:
                assert Archive(handle, known, FileLimits(inflated=0)).names == ("a.txt",)


def test_archives_are_written_to_plain_files_only(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place, text in ((tmp_path, "regular"), (tmp_path / "pipe", "regular"), (tmp_path / "none" / "x", "folder")):
        with pytest.raises(OSError, match=text):
            write(place)
    assert sorted(tmp_path.iterdir()) == [tmp_path / "pipe"]


def test_plain_data_has_limits() -> None:
    assert json_of('{"a": [1, {"b": null}]}') == {"a": [1, {"b": None}]}
    for text in ("[" * 100_000, "[" * 60 + "]" * 60, '{"a": 1, "a": 2}', "{", b"\xff", "9" * 5000):
        with pytest.raises(InputError):
            json_of(text)
    with pytest.raises(FileLimitError):
        json_of("[1, 2, 3]", limits=FileLimits(json_bytes=8))
    assert field({"n": 3}, "n", int, 0, 5) == 3
    for value in (True, "3", -1, 6, None, 3.0):
        with pytest.raises(InputError, match="its 'n'"):
            field({"n": value}, "n", int, 0, 5)
    for absent in ({}, [], "n", None):
        with pytest.raises(InputError, match="it has no 'n'"):
            field(absent, "n", int)


def test_plain_data_as_large_as_its_limits_is_accepted() -> None:
    assert json_of("[1, 2, 3]", limits=FileLimits(json_bytes=9)) == [1, 2, 3]
    assert json_of("[" * 50 + "]" * 50)
    with pytest.raises(FileLimitError, match="nested more than 50 deep"):
        json_of("[" * 51 + "]" * 51)
    for value in (0, 5):
        assert field({"n": value}, "n", int, 0, 5) == value
    for value, low, high in ((-1, 0, math.inf), (6, -math.inf, 5)):
        with pytest.raises(InputError, match="outside of"):
            field({"n": value}, "n", int, low, high)


def test_sizes_of_tensors_have_limits() -> None:
    assert bytes_of((2, 3), 4) == 24
    assert bytes_of((0, 3), 4) == 0
    assert bytes_of((1,) * 32, 4) == 4
    assert bytes_of((2**34,), 4) == 2**36
    with pytest.raises(FileLimitError, match="more than 64 GiB"):
        bytes_of((2**34 + 1,), 4)
    for shape, error in (((2**40, 2**40), FileLimitError), ((0, 2**60), FileLimitError), ((-1,), InputError)):
        with pytest.raises(error):
            bytes_of(shape, 4)
    with pytest.raises(FileLimitError):
        bytes_of((1,) * 40, 4)


def test_work_and_time_have_limits() -> None:
    allowance = Allowance("x", work=3)
    allowance.spend(3)
    with pytest.raises(FileLimitError, match="3 steps"):
        allowance.spend()
    assert Allowance("x", 2_000_000, limits=FileLimits(seconds=5.0, seconds_per_mb=10.0)).seconds == 25.0
    late = Allowance("x", limits=FileLimits(seconds=-1.0))
    with pytest.raises(FileLimitError, match="to read"):
        late.spend()


def test_only_plain_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text").write_text("words")
    assert text_file(tmp_path / "text") == "words"
    for name in ("pipe", "absent", ".", "text/x", "a\0b", "/dev/zero"):
        with pytest.raises(InputError):
            text_file(tmp_path / name)
    assert text_file(tmp_path / "text", 5) == "words"
    with pytest.raises(FileLimitError):
        text_file(tmp_path / "text", 4)


def test_whatever_reading_raises_is_one_error() -> None:
    for cause in (
        KeyError("x"),
        RecursionError(),
        MemoryError(),
        ZeroDivisionError(),
        UnicodeError(),
        OSError(5, "io"),
    ):
        with (
            pytest.raises(ModelFileError, match=r"m\.onnx is not a model"),
            typed("m.onnx is not a model", "", ModelFileError),
        ):
            raise cause
    with pytest.raises(KeyboardInterrupt), typed("x"):
        raise KeyboardInterrupt


def test_a_narrower_error_keeps_its_class_and_its_own_hint() -> None:
    for own, told in (("shorten it", "shorten it"), ("", "write another")):
        with pytest.raises(FileLimitError, match="m is none: too long") as raised, typed("m is none", "write another"):
            raise FileLimitError("too long", hint=own)
        assert raised.value.hint == told


def test_causes_are_told_in_one_line_with_their_class_where_the_message_says_little() -> None:
    for error, told in (
        (KeyError("x"), "KeyError: x"),
        (KeyError("there is no x"), "there is no x"),
        (ValueError("not a\nnumber"), "not a"),
        (IndexError("out of range"), "IndexError: out of range"),
        (ZeroDivisionError(), "ZeroDivisionError"),
    ):
        assert cause_of(error) == told


def test_the_mark_that_some_editors_begin_with_is_no_text() -> None:
    assert text_of("\ufeffrule: A[*a]".encode(), "rules") == "rule: A[*a]"


def test_texts_of_files_are_printable() -> None:
    assert shown("plain é") == "plain é"
    assert shown("\x1b[2Jx\n\u202e") == "\\x1b[2Jx\\n\\u202e"
    assert shown("a" * 80) == "a" * 80
    assert len(shown("a" * 5000)) == 80
    assert str(InputError("a node named \x1b[2J", hint="x\0")) == "[SO200] a node named \\x1b[2J\n  hint: x\\x00"


def test_messages_are_bounded_however_long_the_names_in_a_file_are() -> None:
    told = str(InputError(f"the rule {'x' * 50_000} has no sides", hint="write left == right"))
    assert len(told) < 3200
    assert told.startswith("[SO200] the rule xxx")
    assert told.endswith("x has no sides\n  hint: write left == right")


def test_writing_follows_no_link_that_another_put_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "kept"
    kept.write_text("mine")
    monkeypatch.setattr("secrets.token_hex", lambda _: "guessed")
    (tmp_path / ".x.zip.guessed.tmp").symlink_to(kept)
    with pytest.raises(FileExistsError):
        write(tmp_path / "x.zip")
    assert kept.read_text() == "mine"
