//! How many threads to use: the least of the processors this process may run on, the physical
//! cores, and the control group's quota, at least one.

use std::collections::HashSet;
use std::path::Path;

/// The default number of threads of this process.
pub fn default_threads() -> usize {
    let affinity = affinity();
    if cfg!(target_os = "linux") { threads_below(Path::new("/"), affinity) } else { affinity }
}

/// The least of `affinity`, physical cores and quota as the files below `root` tell them.
pub fn threads_below(root: &Path, affinity: usize) -> usize {
    let quota = quota(root).map_or(usize::MAX, |q| q.round() as usize);
    affinity.min(physical_cores(root).unwrap_or(usize::MAX)).min(quota).max(1)
}

/// Processors this process may run on.
fn affinity() -> usize {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: the set is plain bits, for which zero is valid; the call gets its true size.
        let count = unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            let ok = libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) == 0;
            if ok { libc::CPU_COUNT(&set) } else { 0 }
        };
        if let Ok(count @ 1..) = usize::try_from(count) {
            return count;
        }
    }
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Distinct sets of hardware threads that share a core; `None` where the system does not tell.
fn physical_cores(root: &Path) -> Option<usize> {
    let dir = std::fs::read_dir(root.join("sys/devices/system/cpu")).ok()?;
    let cores: HashSet<String> = dir
        .flatten()
        .filter_map(|cpu| std::fs::read_to_string(cpu.path().join("topology/thread_siblings_list")).ok())
        .collect();
    (!cores.is_empty()).then_some(cores.len())
}

/// The tightest processor quota of this process's control groups, in processors.
fn quota(root: &Path) -> Option<f64> {
    let groups = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut least = None;
    for line in groups.lines() {
        // `0::/path` is version 2; `4:cpu,cpuacct:/path` is version 1.
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let mounts: &[&str] = match controllers {
            "" => &["sys/fs/cgroup", "sys/fs/cgroup/unified"],
            c if c.split(',').any(|c| c == "cpu") => &["sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct"],
            _ => continue,
        };
        for mount in mounts {
            // A limit holds for every group below it. In a container the path may be the host's and
            // not exist; the mount's own root is the container's group then.
            for group in Path::new(path).ancestors() {
                let group = group.strip_prefix("/").unwrap_or(group);
                let found = group_quota(&root.join(mount).join(group));
                least = match (least, found) {
                    (Some(a), Some(b)) => Some(f64::min(a, b)),
                    (a, b) => a.or(b),
                };
            }
        }
    }
    least
}

/// The quota of one group's folder.
fn group_quota(dir: &Path) -> Option<f64> {
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).ok();
    let ratio = |quota: &str, period: &str| {
        let (quota, period): (f64, f64) = (quota.trim().parse().ok()?, period.trim().parse().ok()?);
        // "max" does not parse and version 1 writes -1: no limit.
        (quota > 0.0 && period > 0.0).then_some(quota / period)
    };
    match read("cpu.max") {
        Some(text) => ratio(text.split_whitespace().next()?, text.split_whitespace().nth(1)?),
        None => ratio(&read("cpu.cfs_quota_us")?, &read("cpu.cfs_period_us")?),
    }
}

#[cfg(test)]
mod tests {
    use super::{default_threads, threads_below};
    use std::path::Path;

    fn write(root: &Path, name: &str, text: &str) {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn machine(cpus: usize, per_core: usize) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for cpu in 0..cpus {
            let first = cpu / per_core * per_core;
            let siblings = format!("{first}-{}\n", first + per_core - 1);
            write(
                dir.path(),
                &format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"),
                &siblings,
            );
        }
        write(dir.path(), "sys/devices/system/cpu/online", "0-7\n");
        dir
    }

    #[test]
    fn cores_and_affinity() {
        let dir = machine(8, 2);
        assert_eq!(threads_below(dir.path(), 8), 4);
        assert_eq!(threads_below(dir.path(), 3), 3);
        let empty = tempfile::tempdir().unwrap();
        assert_eq!(threads_below(empty.path(), 8), 8);
        assert_eq!(threads_below(empty.path(), 0), 1);
        assert!(default_threads() >= 1);
    }

    #[test]
    fn quota_version_2() {
        let dir = machine(8, 1);
        write(dir.path(), "proc/self/cgroup", "0::/a/b\n");
        write(dir.path(), "sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
        assert_eq!(threads_below(dir.path(), 8), 8);
        for (quota, threads) in [("250000", 3), ("240000", 2), ("20000", 1), ("1200000", 8)] {
            write(dir.path(), "sys/fs/cgroup/a/cpu.max", &format!("{quota} 100000\n"));
            assert_eq!(threads_below(dir.path(), 8), threads, "{quota}");
        }
        // A container: the group's path does not exist below the mount.
        write(dir.path(), "proc/self/cgroup", "0::/host/path\n");
        write(dir.path(), "sys/fs/cgroup/cpu.max", "500000 100000\n");
        assert_eq!(threads_below(dir.path(), 8), 5);
    }

    #[test]
    fn quota_version_1() {
        let dir = machine(8, 1);
        write(dir.path(), "proc/self/cgroup", "5:memory:/x\n4:cpu,cpuacct:/x\nnonsense\n");
        write(dir.path(), "sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n");
        write(dir.path(), "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "-1\n");
        assert_eq!(threads_below(dir.path(), 8), 8);
        write(dir.path(), "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "350000\n");
        assert_eq!(threads_below(dir.path(), 8), 4);
    }
}
