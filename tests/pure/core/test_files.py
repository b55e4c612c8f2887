"""Files and folders that the user names."""

from __future__ import annotations

import grp
import os
import pwd
from types import SimpleNamespace

import pytest

from psrt.core.files import is_own_folder


@pytest.mark.parametrize(
    ("mode", "is_own"),
    [(0o700, True), (0o755, True), (0o777, False), (0o757, False), (0o1777, True)],
)
def test_a_folder_is_ones_own_by_its_mode(tmp_path, mode, is_own):
    tmp_path.chmod(mode)
    assert is_own_folder(tmp_path) == is_own


def test_a_link_or_a_file_is_no_folder_of_ones_own(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    (tmp_path / "file").touch()
    assert [is_own_folder(tmp_path / it) for it in ("folder", "link", "file")] == [True, 0, 0]
    with pytest.raises(FileNotFoundError):
        is_own_folder(tmp_path / "nothing")


@pytest.mark.parametrize(("user", "group", "members", "is_own"), [
    ("ann", "ann", [], True),
    ("ann", "ann", ["bob"], False),
    ("ann", "staff", [], False),
    (None, "ann", [], False),
    ("ann", None, [], False),
])  # fmt: skip
def test_a_group_of_ones_own_name_is_no_others(tmp_path, monkeypatch, user, group, members, is_own):
    def named(name, **more):
        if name is None:
            raise KeyError
        return SimpleNamespace(**more)

    gid = tmp_path.stat().st_gid
    monkeypatch.setattr(pwd, "getpwuid", lambda _: named(user, pw_gid=gid, pw_name=user))
    monkeypatch.setattr(grp, "getgrgid", lambda _: named(group, gr_name=group, gr_mem=members))
    tmp_path.chmod(0o775)
    assert is_own_folder(tmp_path) == is_own
    monkeypatch.setattr(pwd, "getpwuid", lambda _: named(user, pw_gid=gid + 1, pw_name=user))
    assert not is_own_folder(tmp_path)


def test_somebody_elses_is_not_ones_own(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    assert is_own_folder(tmp_path) == (tmp_path.stat().st_uid == 0)
