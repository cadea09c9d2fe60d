import hashlib
import threading
import time

import pytest

from orthrus.models import cache


def test_fill_makes_a_complete_folder_once(tmp_path):
    made = []

    def make(work):
        made.append(work)
        (work / "weights").write_text("w")

    for _ in range(2):
        cache.fill(tmp_path / "m", make)
    assert len(made) == 1
    assert cache.is_complete(tmp_path / "m")
    assert (tmp_path / "m" / "weights").read_text() == "w"


def test_an_interrupted_try_leaves_nothing_and_the_next_one_succeeds(tmp_path):
    def dies(work):
        (work / "half").write_text("x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.fill(tmp_path / "m", dies)
    assert not (tmp_path / "m").exists()
    leftover = tmp_path / ".m.tmp-killed"
    leftover.mkdir()
    (tmp_path / "m").mkdir()  # a folder without the marker, as a crash between two versions would leave it
    cache.fill(tmp_path / "m", lambda work: (work / "whole").touch())
    assert not leftover.exists()
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == [cache.COMPLETE, "whole"]


def test_two_at_once_make_it_once(tmp_path):
    made = []

    def slow(work):
        made.append(work)
        time.sleep(0.2)

    threads = [threading.Thread(target=cache.fill, args=(tmp_path / "m", slow)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


def test_a_wrong_checksum_names_both_sums(tmp_path):
    file = tmp_path / "f"
    file.write_bytes(b"abc")
    right = hashlib.sha256(b"abc").hexdigest()
    cache.check_sha256(file, right)
    with pytest.raises(cache.ChecksumError, match=f"{right}, expected 00"):
        cache.check_sha256(file, "00")


def test_cache_root_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("ORTHRUS_CACHE", raising=False)
    assert cache.cache_root() == tmp_path / "xdg" / "orthrus"
    monkeypatch.setenv("ORTHRUS_CACHE", str(tmp_path / "own"))
    assert cache.cache_root() == tmp_path / "own"
