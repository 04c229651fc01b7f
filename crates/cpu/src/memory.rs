//! How much memory the host has: the system's own figure, cut to the limits of the control group and of the process's
//! address space.

use minfer_graph::MemoryInfo;
use std::path::Path;

/// Memory of the host in bytes.
pub fn memory_info() -> MemoryInfo {
    let host = std::fs::read_to_string("/proc/meminfo").map(|t| parse_meminfo(&t)).unwrap_or_default();
    let v2 = cgroup("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current");
    let v1 =
        cgroup("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes");
    let host = restrict(restrict(host, v2), v1);
    match AddressSpace::now() {
        Some(space) => restrict(host, Some((space.limit, space.limit - space.left()))),
        None => host,
    }
}

/// The process's address space, if something limits it (`ulimit -v`).
///
/// Under such a limit even the smallest allocation may fail, which ends the program with no word to its user. So large
/// ones leave a reserve for the small ones: [`AddressSpace::left`] is what large ones may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressSpace {
    /// Bytes it may have.
    pub limit: u64,
    /// Bytes in use.
    pub used: u64,
}

impl AddressSpace {
    /// Bytes kept for what is small: graph and plans, stacks of threads, buffers of files.
    pub const RESERVE: u64 = 40 << 20;

    /// What holds now; `None` without a limit, or on systems that don't tell.
    pub fn now() -> Option<Self> {
        let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
        let limit = parse_limit(&limits)?;
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        Some(AddressSpace { limit, used: kib(&status, "VmSize:").unwrap_or(0) })
    }

    /// Bytes for large allocations: what is free but the reserve.
    pub fn left(self) -> u64 {
        self.limit.saturating_sub(self.used).saturating_sub(Self::RESERVE)
    }
}

/// Under a limit of address space, makes all threads share one heap: the C library would set 64 MiB aside for each
/// thread. To be called while there is one thread.
pub fn spare_address_space() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if AddressSpace::now().is_some() {
        // SAFETY: a setting of the allocator, by its own function; no memory is touched by this.
        let _ = unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    }
}

/// The soft limit in `/proc/self/limits`; `None` if it is "unlimited".
fn parse_limit(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// A figure in kB of a list of `name: value` lines, in bytes.
fn kib(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|l| l.strip_prefix(name))?;
    let kib: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// `MemTotal` and `MemAvailable` of `/proc/meminfo`.
fn parse_meminfo(text: &str) -> MemoryInfo {
    MemoryInfo { total: kib(text, "MemTotal:"), free: kib(text, "MemAvailable:") }
}

/// Limit and use of a control group; `None` without a limit ("max", or no such file).
fn cgroup(limit: &str, used: &str) -> Option<(u64, u64)> {
    let number = |path: &str| std::fs::read_to_string(Path::new(path)).ok()?.trim().parse::<u64>().ok();
    Some((number(limit)?, number(used)?))
}

fn restrict(host: MemoryInfo, group: Option<(u64, u64)>) -> MemoryInfo {
    let Some((limit, used)) = group else { return host };
    let cut = |value: Option<u64>, bound: u64| Some(value.map_or(bound, |v| v.min(bound)));
    match host.total {
        // Version 1 writes "no limit" as a huge number.
        Some(total) if limit >= total => host,
        _ => MemoryInfo { total: cut(host.total, limit), free: cut(host.free, limit.saturating_sub(used)) },
    }
}

#[cfg(test)]
mod tests {
    use super::{AddressSpace, memory_info, parse_limit, parse_meminfo, restrict};
    use minfer_graph::MemoryInfo;

    #[test]
    fn reads_the_system() {
        let text = "MemTotal:       2048 kB\nMemFree:  1 kB\nMemAvailable:    1024 kB\n";
        let host = parse_meminfo(text);
        assert_eq!(host, MemoryInfo { total: Some(2 << 20), free: Some(1 << 20) });
        assert_eq!(restrict(host, Some((1 << 62, 5))), host);
        let cut = restrict(host, Some((1 << 20, 1000)));
        assert_eq!(cut, MemoryInfo { total: Some(1 << 20), free: Some((1 << 20) - 1000) });
        assert_eq!(parse_meminfo("nonsense"), MemoryInfo::default());
        if cfg!(target_os = "linux") {
            let now = memory_info();
            assert!(now.free <= now.total && now.total > Some(0));
        }
    }

    #[test]
    fn limits_of_address_space() {
        let limits = "Limit          Soft Limit    Hard Limit    Units\n\
                      Max address space         209715200            unlimited            bytes\n";
        assert_eq!(parse_limit(limits), Some(200 << 20));
        assert_eq!(parse_limit("Max address space   unlimited  unlimited  bytes\n"), None);
        assert_eq!(parse_limit("nonsense"), None);
        let left = |limit, used| AddressSpace { limit, used }.left();
        assert_eq!(left(AddressSpace::RESERVE + 7, 3), 4);
        assert_eq!((left(AddressSpace::RESERVE, 3), left(5, 7)), (0, 0));
    }
}
