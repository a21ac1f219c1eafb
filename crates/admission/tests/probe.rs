//! How much memory is left, read from trees of files that stand for a system.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use toko_admission::probe::pressure::{Gate, Pressure};
use toko_admission::probe::process::{process_memory, process_memory_of};
use toko_admission::probe::{Limiter, Reading, Roots, read};
use toko_admission::units::Bytes;

const GIB: u64 = 1 << 30;

/// A system of 32 GiB of which 30 are available, in a directory of its own.
struct Tree {
    directory: TempDir,
}

impl Tree {
    fn new() -> Self {
        let tree = Self { directory: tempfile::tempdir().expect("a directory") };
        fs::create_dir_all(tree.cgroup("")).expect("a directory");
        tree.proc(
            "meminfo",
            "MemTotal:       33554432 kB\nMemFree:  1 kB\nMemAvailable:   31457280 kB\n",
        )
        .proc("self/cgroup", "0::/\n")
    }

    fn cgroup(&self, path: &str) -> PathBuf {
        self.directory.path().join("sys/fs/cgroup").join(path)
    }

    fn proc(self, path: &str, text: &str) -> Self {
        write(&self.directory.path().join("proc").join(path), text);
        self
    }

    fn group(self, path: &str, text: &str) -> Self {
        write(&self.cgroup(path), text);
        self
    }

    fn roots(&self) -> Roots {
        Roots { proc: self.directory.path().join("proc"), cgroup: self.cgroup("") }
    }

    fn read(&self) -> Reading {
        read(&self.roots())
    }
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
    fs::write(path, text).expect("a file");
}

fn gib(gib: u64) -> Bytes {
    Bytes::new(gib * GIB)
}

#[track_caller]
fn check(tree: &Tree, available: Bytes, limiter: &Limiter) {
    let reading = tree.read();
    assert_eq!(reading.available(), Some(available), "{reading:#?}");
    assert_eq!(reading.binding().map(|bound| &bound.limiter), Some(limiter), "{reading:#?}");
    assert!(reading.warnings.is_empty(), "{reading:#?}");
}

#[test]
fn a1_files_in_memory_do_not_count_as_used() {
    let tree = Tree::new()
        .group("memory.max", "max\n")
        .group("memory.current", "30064771072\n")
        .group("memory.stat", "anon 1610612736\nfile 28454158336\n");
    check(&tree, gib(30), &Limiter::Host);
    assert_eq!(tree.read().bounds.len(), 1, "a group without a limit bounds nothing");
    assert_eq!(tree.read().host_total, Some(gib(32)));
}

#[test]
fn a2_a_group_full_of_files_has_room() {
    let tree = Tree::new()
        .group("memory.max", "8589934592\n")
        .group("memory.current", "8053063680\n")
        .group("memory.stat", "anon 1073741824\nfile 6979321856\nfile_mapped 5368709120\n");
    check(&tree, gib(7), &Limiter::CgroupMax { path: tree.cgroup("") });
}

#[test]
fn a3_an_ancestor_that_is_stricter_binds_and_is_named() {
    let tree = Tree::new()
        .proc("self/cgroup", "0::/user.slice/toko.service\n")
        .group("user.slice/toko.service/memory.max", "max\n")
        .group("user.slice/toko.service/memory.stat", "anon 0\n")
        .group("user.slice/memory.max", "4294967296\n")
        .group("user.slice/memory.stat", "anon 0\nfile 4000000000\n");
    check(&tree, gib(4), &Limiter::CgroupMax { path: tree.cgroup("user.slice") });
    let named = tree.read().binding().unwrap().limiter.to_string();
    assert!(named.ends_with("/user.slice/memory.max"), "{named}");
}

#[test]
fn a4_a_soft_limit_below_the_hard_one_binds_and_is_named() {
    let tree = Tree::new()
        .group("memory.max", "8589934592\n")
        .group("memory.high", "3221225472\n")
        .group("memory.stat", "anon 0\n");
    check(&tree, gib(3), &Limiter::CgroupHigh { path: tree.cgroup("") });
}

#[test]
fn a5_the_largest_limit_of_version_1_is_none() {
    let tree = |limit: &str| {
        Tree::new()
            .proc("self/cgroup", "5:cpu,cpuacct:/\n4:memory:/docker/toko\n0::/docker/toko\n")
            .group("unified/docker/toko/cgroup.procs", "")
            .group("memory/docker/toko/memory.limit_in_bytes", limit)
            .group("memory/docker/toko/memory.stat", "rss 0\ntotal_rss 0\ntotal_cache 2147000000\n")
    };
    check(&tree("9223372036854771712\n"), gib(30), &Limiter::Host);
    // Where a page has 64 KiB.
    check(&tree("9223372036854710272\n"), gib(30), &Limiter::Host);
    let limited = tree("2147483648\n");
    let group = limited.cgroup("memory/docker/toko");
    check(&limited, gib(2), &Limiter::CgroupV1 { path: group });
}

#[test]
fn a6_what_is_over_its_limit_has_no_room_and_available_is_at_most_all() {
    let over = |stat: &str| {
        Tree::new()
            .group("memory.max", "8589934592\n")
            .group("memory.current", "9663676416\n")
            .group("memory.stat", stat)
    };
    for stat in ["anon 9663676416\nfile 0\n", "anon 1073741824\nfile 8589934592\n"] {
        let tree = over(stat);
        check(&tree, gib(0), &Limiter::CgroupMax { path: tree.cgroup("") });
    }
    let tree = Tree::new().proc("meminfo", "MemTotal: 1048576 kB\nMemAvailable: 2097152 kB\n");
    check(&tree, gib(1), &Limiter::Host);
}

#[test]
fn a_group_that_is_over_its_limit_for_a_moment_keeps_the_room_that_its_files_take() {
    let tree = Tree::new()
        .group("memory.max", "8589934592\n")
        .group("memory.current", "8590983168\n")
        .group("memory.stat", "anon 1073741824\nfile 7517241344\n");
    check(&tree, gib(7), &Limiter::CgroupMax { path: tree.cgroup("") });
}

#[test]
fn a7_garbage_is_unknown_and_the_others_decide() {
    let garbage =
        ["", "\n", "-1\n", "+5\n", "8 GiB\n", "18446744073709551616\n", "0x10\n", "1e9\n"];
    for text in garbage {
        let tree = Tree::new()
            .proc("self/cgroup", "0::/a/b\n")
            .group("a/b/memory.max", text)
            .group("a/memory.max", "4294967296\n")
            .group("a/memory.stat", "anon 0\n");
        let reading = tree.read();
        assert_eq!(reading.available(), Some(gib(4)), "{text:?}");
        assert_eq!(reading.warnings.len(), 1, "{text:?}: {:?}", reading.warnings);
        assert!(reading.warnings[0].contains("a/b/memory.max"), "{:?}", reading.warnings);
    }
}

#[test]
fn a7_a_host_that_tells_nothing_leaves_the_groups_to_decide() {
    for text in ["", "MemTotal: 33554432 kB\n", "MemTotal: 1 kB\nMemAvailable: -4 kB\n", "\u{0}"] {
        let limited = Tree::new()
            .proc("meminfo", text)
            .group("memory.max", "4294967296\n")
            .group("memory.stat", "anon 1073741824\n");
        let reading = limited.read();
        assert_eq!(reading.available(), Some(gib(3)), "{text:?}");
        assert_eq!(reading.host_total, None);
        assert_eq!(reading.warnings.len(), 1, "{text:?}: {:?}", reading.warnings);

        let nothing = Tree::new().proc("meminfo", text).read();
        assert_eq!(nothing.available(), None, "unknown is neither nothing nor everything");
    }
}

#[test]
fn a7_a_file_that_cannot_be_read_is_reported() {
    let tree = Tree::new().group("memory.stat", "anon 0\n");
    fs::create_dir(tree.cgroup("memory.max")).unwrap();
    fs::write(tree.cgroup("memory.high"), b"\xff\xfe").unwrap();
    let reading = tree.read();
    assert_eq!(reading.available(), Some(gib(30)));
    assert_eq!(reading.warnings.len(), 2, "{:?}", reading.warnings);
}

#[test]
fn a7_statistics_that_are_garbage_leave_the_total_as_what_is_used() {
    for stat in ["", "anon\n", "anon x\n", "file 3\n", "anon 5\nshmem -1\n", "anonymous 5\n"] {
        let tree = Tree::new()
            .proc("self/status", "VmRSS: 9 kB\nRssAnon: 2097152 kB\nRssShmem: 0 kB\n")
            .group("memory.max", "8589934592\n")
            .group("memory.stat", stat);
        let reading = tree.read();
        assert_eq!(
            reading.available(),
            Some(gib(6)),
            "at least what this process has is used: {stat:?}"
        );
        assert!(!reading.warnings.is_empty(), "{stat:?}");

        let reading = tree.group("memory.current", "5368709120\n").read();
        assert_eq!(reading.available(), Some(gib(3)), "{stat:?}");
    }
}

#[test]
fn a8_the_own_groups_pressure_counts_before_the_hosts() {
    let some = |percent: &str| format!("some avg10={percent} avg60=3.00 avg300=0.12 total=9\n");
    let with = |own: &str, host: &str| {
        let full = "full avg10=99.00 avg60=0.00 avg300=0.00 total=0\n";
        Tree::new()
            .group("memory.pressure", &(some(own) + full))
            .proc("pressure/memory", &(some(host) + full))
            .read()
            .pressure
    };
    let calm = with("0.00", "41.00");
    assert_eq!(calm, Pressure { own: Some(0.0), host: Some(41.0) });
    let mut gate = Gate::new(10.0, 5.0);
    assert!(!gate.observe(calm.counted()));
    assert!(gate.observe(with("41.00", "0.00").counted()));

    let alone = Tree::new().proc("pressure/memory", &some("41.00")).read();
    assert_eq!(alone.pressure.counted(), Some(41.0), "the host counts where there is no own");
}

#[test]
fn pressure_that_is_garbage_is_unknown() {
    for text in
        ["", "some\n", "some avg10=\n", "some avg10=NaN\n", "some avg10=-1\n", "some avg10=1e9\n"]
    {
        let tree = Tree::new().group("memory.pressure", text);
        let reading = tree.read();
        assert_eq!(reading.pressure.counted(), None, "{text:?}");
        assert_eq!(reading.warnings.len(), 1, "{text:?}");
        assert_eq!(reading.available(), Some(gib(30)));
    }
}

#[test]
fn a_gate_lets_go_only_clearly_below_where_it_holds() {
    let mut gate = Gate::new(20.0, 10.0);
    let readings = [10.0, 20.0, 20.1, 19.0, 10.0, 9.9, 15.0, 20.0, 21.0];
    let held = readings.map(|percent| gate.observe(Some(percent)));
    assert_eq!(held, [false, false, true, true, true, false, false, false, true]);
    assert!(gate.is_holding());
    assert!(!gate.observe(None), "what is unknown holds nothing");
}

#[test]
fn a9_a_path_that_a_namespace_hides_falls_back_to_the_mounts_root() {
    for path in ["/../..", "/../../other.slice", "/gone/below"] {
        let tree = Tree::new()
            .proc("self/cgroup", &format!("0::{path}\n"))
            .group("memory.max", "4294967296\n")
            .group("memory.stat", "anon 0\n")
            .group("other.slice/memory.max", "1073741824\n");
        check(&tree, gib(4), &Limiter::CgroupMax { path: tree.cgroup("") });
    }
}

#[test]
fn a_path_from_outside_a_container_is_followed_as_far_as_it_is_shown() {
    let tree = Tree::new()
        .proc("self/cgroup", "4:memory:/docker/0123/worker\n")
        .group("memory/memory.limit_in_bytes", "4294967296\n")
        .group("memory/memory.stat", "rss 0\n")
        .group("memory/worker/memory.limit_in_bytes", "2147483648\n")
        .group("memory/worker/memory.stat", "rss 0\n");
    check(&tree, gib(2), &Limiter::CgroupV1 { path: tree.cgroup("memory/worker") });
}

#[test]
fn without_a_list_of_groups_the_highest_groups_limits_hold() {
    for text in ["", "nonsense\n", "a:b\n"] {
        let tree = Tree::new()
            .proc("self/cgroup", text)
            .group("memory.max", "4294967296\n")
            .group("memory.stat", "anon 0\n");
        assert_eq!(tree.read().available(), Some(gib(4)), "{text:?}");
    }
}

#[test]
fn controllers_of_version_1_that_are_mounted_together_are_found() {
    let tree = Tree::new()
        .proc("self/cgroup", "4:cpu,memory:/toko\n")
        .group("cpu,memory/toko/memory.limit_in_bytes", "2147483648\n")
        .group("cpu,memory/toko/memory.stat", "rss 0\n");
    check(&tree, gib(2), &Limiter::CgroupV1 { path: tree.cgroup("cpu,memory/toko") });
}

#[test]
fn everything_that_cannot_be_taken_back_is_used() {
    let all = "anon 1073741824\nfile 9\nkernel 536870912\nshmem 268435456\nunevictable 268435456\n\
               kernel_stack 7\nslab 7\ninactive_file 5368709120\nanon_thp 77\n";
    let tree = Tree::new().group("memory.max", "8589934592\n").group("memory.stat", all);
    check(&tree, gib(6), &Limiter::CgroupMax { path: tree.cgroup("") });

    let parts = "anon 1073741824\nkernel_stack 1048576\npagetables 1048576\npercpu 1048576\n\
                 vmalloc 1048576\nslab 1069547520\nslab_reclaimable 3\n";
    let tree = Tree::new().group("memory.max", "8589934592\n").group("memory.stat", parts);
    check(&tree, gib(6), &Limiter::CgroupMax { path: tree.cgroup("") });

    let first = "cache 7\nrss 1\nshmem 1\nunevictable 1\ntotal_cache 4294967296\n\
                 total_rss 1073741824\ntotal_shmem 268435456\ntotal_unevictable 268435456\n";
    let tree = Tree::new()
        .proc("self/cgroup", "4:memory:/\n")
        .group("memory/memory.limit_in_bytes", "8589934592\n")
        .group("memory/memory.kmem.usage_in_bytes", "536870912\n")
        .group("memory/memory.stat", first);
    check(&tree, gib(6), &Limiter::CgroupV1 { path: tree.cgroup("memory") });
}

#[test]
fn a_limit_of_addresses_binds_where_it_is_the_strictest() {
    let limits = |soft: &str| {
        Tree::new().proc("self/status", "VmSize:  1048576 kB\n").proc(
            "self/limits",
            &format!(
                "Limit                     Soft Limit           Hard Limit           Units     \n\
                 Max resident set          1                    unlimited            bytes     \n\
                 Max address space         {soft:20} unlimited            bytes     \n"
            ),
        )
    };
    check(&limits("4294967296"), gib(3), &Limiter::AddressSpace);
    check(&limits("unlimited"), gib(30), &Limiter::Host);
    let reading = limits("-7").read();
    assert_eq!((reading.available(), reading.warnings.len()), (Some(gib(30)), 1));
}

#[test]
fn what_a_process_has_in_memory_is_read_from_its_status() {
    let status = "Name:\ttoko\nVmPeak:\t 900 kB\nVmSize:\t 800 kB\nVmHWM:\t 700 kB\nVmRSS:\t 600 kB\n\
                  RssAnon:\t 300 kB\nRssFile:\t 200 kB\nRssShmem:\t 100 kB\n";
    let tree = Tree::new().proc("self/status", status).proc("77/status", status);
    let memory = process_memory(&tree.roots()).unwrap();
    let kibibytes = [
        memory.addresses,
        memory.peak,
        memory.resident,
        memory.anonymous,
        memory.mapped,
        memory.shared,
        memory.unreclaimable(),
    ]
    .map(|bytes| bytes.get() / 1024);
    assert_eq!(kibibytes, [800, 700, 600, 300, 200, 100, 400]);
    assert_eq!(process_memory_of(&tree.roots(), 77).unwrap(), memory);
    assert!(process_memory_of(&tree.roots(), 78).is_err());
    let torn = Tree::new().proc("self/status", "VmRSS:\t 600 kB\n");
    let error = process_memory(&torn.roots()).unwrap_err().to_string();
    assert!(error.contains("VmSize") || error.contains("RssAnon"), "{error}");
}

#[test]
#[cfg(target_os = "linux")]
fn the_running_system_is_read() {
    let roots = Roots::system();
    let reading = read(&roots);
    let (total, available) = (reading.host_total.unwrap(), reading.available().unwrap());
    assert!(Bytes::ZERO < available && available <= total, "{reading:?}");

    let before = process_memory(&roots).unwrap();
    assert!(Bytes::ZERO < before.resident && before.resident <= before.peak);
    let touched = vec![1_u8; 64 << 20];
    let after = process_memory(&roots).unwrap();
    assert_eq!(touched.iter().map(|byte| u64::from(*byte)).sum::<u64>(), 64 << 20);
    assert!(after.anonymous.left_after(before.anonymous) >= Bytes::new(60 << 20), "{after:?}");
}
