"""The number of threads: the environment, CPU quotas and threadpoolctl."""

import pytest

import linattn
from linattn._core import settings

pytestmark = pytest.mark.any_isa


def test_environment(interpreter):
    script = "import linattn; print(linattn.get_num_threads())"
    for count in ("1", "3"):
        stdout, _ = interpreter(script, LINATTN_NUM_THREADS=count)
        assert stdout.strip() == count


@pytest.mark.parametrize(
    ("own", "omp", "expected"),
    [
        ("", "1", "1"),
        ("", "3", "3"),
        ("2", "1", "2"),
        ("", "4,2", "4"),
        ("", " 5 ,2", "5"),
        ("", "5000", "1024"),
    ],
)
def test_openmp_environment(interpreter, own, omp, expected):
    script = "import linattn; print(linattn.get_num_threads())"
    stdout, _ = interpreter(script, LINATTN_NUM_THREADS=own, OMP_NUM_THREADS=omp)
    assert stdout.strip() == expected


def test_malformed_openmp_environment(interpreter):
    """It is not ours to refuse."""
    script = "import linattn; print(linattn.get_num_threads())"
    unset, _ = interpreter(script, LINATTN_NUM_THREADS="", OMP_NUM_THREADS="")
    for omp in ("many", "0", "-1", ",2", "1.5"):
        stdout, _ = interpreter(script, LINATTN_NUM_THREADS="", OMP_NUM_THREADS=omp)
        assert stdout == unset


@pytest.mark.parametrize("bad", ["many", "0", "-1", "5000", "4,2"])
def test_malformed_environment(interpreter, bad):
    _, stderr = interpreter("import linattn", LINATTN_NUM_THREADS=bad, code=1)
    assert f"LINATTN_NUM_THREADS is {bad!r}; expected 1 to 1024" in stderr


V2, V1 = "sys/fs/cgroup", "sys/fs/cgroup/cpu,cpuacct"
CGROUPS = {  # what /proc/self/cgroup says, files, and CPUs
    "none": ("", {}, None),
    "v2": ("0::/user/app", {f"{V2}/user/app/cpu.max": "150000 100000"}, 2),
    "v2 of a parent": (
        "0::/user/app",
        {f"{V2}/user/cpu.max": "300000 100000", f"{V2}/user/app/cpu.max": "max 100000"},
        3,
    ),
    "v2 in a container": ("0::/", {f"{V2}/cpu.max": "20000 100000"}, 1),
    "v2 elsewhere": ("0::/../app", {f"{V2}/cpu.max": "20000 100000"}, 1),
    "v2 without a quota": ("0::/app", {f"{V2}/app/cpu.max": "max 100000"}, None),
    "v1": (
        "5:memory:/app\n4:cpu,cpuacct:/app\n1:name=systemd:/app",
        {f"{V1}/app/cpu.cfs_quota_us": "250000", f"{V1}/app/cpu.cfs_period_us": "100000"},
        3,
    ),
    "v1 in a container": (
        "4:cpu:/docker/1a2b",
        {
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "400000",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        },
        4,
    ),
    "v1 without a quota": (
        "4:cpu,cpuacct:/",
        {f"{V1}/cpu.cfs_quota_us": "-1", f"{V1}/cpu.cfs_period_us": "100000"},
        None,
    ),
    "both": (
        "4:cpu,cpuacct:/app\n0::/app",
        {
            f"{V1}/app/cpu.cfs_quota_us": "200000",
            f"{V1}/app/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/unified/app/cpu.max": "max 100000",
        },
        2,
    ),
}


@pytest.mark.parametrize("case", CGROUPS)
def test_quota_of_cpus(tmp_path, case):
    lines, files, expected = CGROUPS[case]
    for name, text in {"proc/self/cgroup": lines, **files}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert settings.cpu_quota(tmp_path) == expected


def test_no_control_groups(tmp_path):
    assert settings.cpu_quota(tmp_path) is None


def test_quota_limits_threads(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cpus = settings._default_threads()
    for quota, expected in ((1, 1), (cpus + 5, cpus), (None, cpus)):
        monkeypatch.setattr(settings, "cpu_quota", lambda quota=quota: quota)
        assert settings._default_threads() == min(expected, linattn.get_num_threads())


def test_threadpoolctl(threads):
    threadpoolctl = pytest.importorskip("threadpoolctl")
    threads(3)
    (entry,) = [x for x in threadpoolctl.threadpool_info() if "linattn" in str(x.values())]
    assert entry["num_threads"] == 3
    with threadpoolctl.threadpool_limits(limits=1):
        assert linattn.get_num_threads() == 1
    assert linattn.get_num_threads() == 3
    with threadpoolctl.threadpool_limits(limits={entry["user_api"]: 2}):
        assert linattn.get_num_threads() == 2
    assert linattn.get_num_threads() == 3
