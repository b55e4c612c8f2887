"""What ranks share on a host is for their user alone, whatever the user's mask says."""

JOB = """
import os, stat
os.umask(0)
import psrt
from psrt.runtime.worker import Worker

step = Worker._step


def mode_of(where, path):
    try:
        return os.stat(f"/proc/self/map_files/{where}").st_mode
    except PermissionError:  # for root alone; what has no name any more, nobody else can open
        return os.stat(path).st_mode if os.path.exists(path) else stat.S_IRUSR | stat.S_IWUSR


async def looks(self, batch, progress):
    if self.number == 0 and self.clock == 5:
        for line in open("/proc/self/maps"):
            where, access, *_, inode, path = [*line.split(maxsplit=5), ""][:6]
            path = path.strip()
            if "s" in access and "w" in access and path.startswith("/") and "SYSV" not in path:
                print(f"shared {stat.S_IMODE(mode_of(where, path)):o} {path}")
        for handle in os.listdir("/proc/self/fd"):
            if not os.path.exists(f"/proc/self/fd/{handle}"):
                continue  # with which they were listed
            mode = os.stat(f"/proc/self/fd/{handle}").st_mode
            if stat.S_ISFIFO(mode) and "psrt" in os.readlink(f"/proc/self/fd/{handle}"):
                print(f"shared {stat.S_IMODE(mode):o} a pipe")
        for line in open("/proc/sysvipc/shm"):
            _, _, mode, _, by, *_ = line.split()
            if by == str(os.getpid()):
                print(f"shared {int(mode, 8) & 0o777:o} a segment of System V")
    return await step(self, batch, progress)


Worker._step = looks
psrt.run(psrt.TrainConfig(mode="sync", servers=1, hidden=(300,), epochs=1))
"""


def test_it_is_shared_with_no_other_user(launch):
    (launch.folder / "job.py").write_text(JOB)
    done = launch.ranks(3, "job.py")
    assert done.status == 0, done.stderr
    found = [line.split(maxsplit=2)[1:] for line in done.stdout.splitlines() if "shared" in line]
    assert len(found) >= 3
    assert [it for it in found if it[0] != "600"] == []
