//! How much memory the host has: the system's own figure, cut to the limit of the control group.

use minfer_graph::MemoryInfo;
use std::path::Path;

/// Memory of the host in bytes.
pub fn memory_info() -> MemoryInfo {
    let host = std::fs::read_to_string("/proc/meminfo").map(|t| parse_meminfo(&t)).unwrap_or_default();
    let v2 = cgroup("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current");
    let v1 =
        cgroup("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes");
    restrict(restrict(host, v2), v1)
}

/// `MemTotal` and `MemAvailable` of `/proc/meminfo`.
fn parse_meminfo(text: &str) -> MemoryInfo {
    let field = |name: &str| {
        let rest = text.lines().find_map(|l| l.strip_prefix(name))?;
        let kib: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    };
    MemoryInfo { total: field("MemTotal:"), free: field("MemAvailable:") }
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
    use super::{memory_info, parse_meminfo, restrict};
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
}
