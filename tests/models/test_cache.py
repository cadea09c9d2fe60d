import hashlib
import signal
import subprocess
import sys
import threading

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


def test_the_second_of_two_at_once_waits_for_the_first_and_says_so(tmp_path):
    made, said = [], []
    inside, waiting = threading.Event(), threading.Event()

    def first(work):
        inside.set()
        assert waiting.wait(60)
        made.append("first")

    def tell(line):
        said.append(line)
        waiting.set()

    thread = threading.Thread(target=cache.fill, args=(tmp_path / "m", first))
    thread.start()
    assert inside.wait(60)
    cache.fill(tmp_path / "m", lambda work: made.append("second"), tell)
    thread.join()
    assert made == ["first"]
    assert said == ["waiting for another process that is fetching it"]


def test_a_killed_process_frees_the_lock_and_its_half_is_swept_away(tmp_path):
    script = (
        "import os, sys; from pathlib import Path; from orthrus.models import cache\n"
        "def make(work):\n    (work / 'half').mkdir(); os.kill(os.getpid(), 9)\n"
        "cache.fill(Path(sys.argv[1]), make)"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path / "m")], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(tmp_path.glob(".m.tmp-*"))) == 1
    cache.fill(tmp_path / "m", lambda work: (work / "whole").touch())
    assert cache.is_complete(tmp_path / "m")
    assert list(tmp_path.glob(".m.tmp-*")) == []


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
