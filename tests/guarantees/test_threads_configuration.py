"""The number of threads: the environment, CPU quotas and threadpoolctl."""

import os

import numpy as np
import pytest
from slow import slow

import linattn
from linattn._core import settings
from linattn._core.control_groups import cpu_quota

pytestmark = pytest.mark.any_isa


def test_environment(interpreter):
    script = "import linattn; print(linattn.get_num_threads())"
    for count in ("1", "3"):
        stdout, _ = interpreter(script, LINATTN_NUM_THREADS=count)
        assert stdout.strip() == count


@pytest.mark.parametrize(
    ("own", "omp", "expected"),
    [
        ("2", "1", "2"),
        ("", " 5 ,2", "5"),
        *(
            pytest.param("", omp, expected, marks=pytest.mark.slow)
            for omp, expected in (("1", "1"), ("3", "3"), ("4,2", "4"), ("5000", "1024"))
        ),
    ],
)
def test_openmp_environment(interpreter, own, omp, expected):
    script = "import linattn; print(linattn.get_num_threads())"
    stdout, _ = interpreter(script, LINATTN_NUM_THREADS=own, OMP_NUM_THREADS=omp)
    assert stdout.strip() == expected


@pytest.mark.slow
def test_malformed_openmp_environment(interpreter):
    """It is not ours to refuse."""
    script = "import linattn; print(linattn.get_num_threads())"
    unset, _ = interpreter(script, LINATTN_NUM_THREADS="", OMP_NUM_THREADS="")
    for omp in ("many", "0", "-1", ",2", "1.5"):
        stdout, _ = interpreter(script, LINATTN_NUM_THREADS="", OMP_NUM_THREADS=omp)
        assert stdout == unset


@pytest.mark.parametrize("bad", ["many", *slow("0", "-1", "5000", "4,2")])
def test_malformed_environment(interpreter, bad):
    _, stderr = interpreter("import linattn", LINATTN_NUM_THREADS=bad, code=1)
    assert f"LINATTN_NUM_THREADS is {bad!r}; expected 1 to 1024" in stderr


@pytest.mark.parametrize(
    ("own", "policy", "expected"),
    [("", "", 50), ("0", "", 0), ("", "PASSIVE ", 0), ("7", "passive", 7)],
)
def test_spin_time_of_the_environment(interpreter, own, policy, expected):
    script = "import linattn; print(linattn.get_spin_time())"
    stdout, _ = interpreter(script, LINATTN_SPIN_TIME=own, OMP_WAIT_POLICY=policy)
    assert int(stdout) == expected


@pytest.mark.parametrize("bad", [*slow("soon", "-1"), "100001"])
def test_malformed_spin_time(interpreter, bad):
    _, stderr = interpreter("import linattn", LINATTN_SPIN_TIME=bad, code=1)
    assert f"LINATTN_SPIN_TIME is {bad!r}; expected 0 to 100000" in stderr


def test_spin_time():
    before = linattn.get_spin_time()
    try:
        for us in (0, 100_000, np.int64(30)):
            linattn.set_spin_time(us)
            assert linattn.get_spin_time() == us
        for bad, error in ((-1, ValueError), (100_001, ValueError), (2**70, ValueError)):
            with pytest.raises(error, match=f"us is {bad}; expected 0 to 100000"):
                linattn.set_spin_time(bad)
        with pytest.raises(TypeError, match=r"us is 1\.5; expected an integer"):
            linattn.set_spin_time(1.5)
        assert linattn.get_spin_time() == 30
    finally:
        linattn.set_spin_time(before)


AWAKE = """
import time
import linattn, numpy as np
q = np.ones((64, 512, 64), "f4")
linattn.set_num_threads({threads})
linattn.causal(q, q, q)
time.sleep(0.02)  # until all have started, and tried to sleep
linattn.causal(q, q, q)
before = time.process_time()
time.sleep(0.05)
print(time.process_time() - before)
"""


@pytest.mark.parametrize(("us", "more"), [(0, 0), (100_000, 1)])
def test_threads_sleep(interpreter, us, more):
    """At once where that is wished, or where a call has more threads than there are processors."""
    script = AWAKE.format(threads=max(os.cpu_count(), 2) + more)
    stdout, _ = interpreter(script, LINATTN_SPIN_TIME=str(us))
    assert float(stdout) < 0.01


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
    assert cpu_quota(tmp_path) == expected


def test_no_control_groups(tmp_path):
    assert cpu_quota(tmp_path) is None


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
