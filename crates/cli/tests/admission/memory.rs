//! What a process takes, by what the system says of it.

/// Returns a line of `/proc/PID/status` in bytes; nothing once the process has ended.
pub(crate) fn status(pid: u32, name: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// Returns the most that a process has had in memory so far.
pub(crate) fn peak(pid: u32) -> Option<u64> {
    status(pid, "VmHWM")
}

/// Returns what a process has in memory.
pub(crate) fn resident(pid: u32) -> u64 {
    status(pid, "VmRSS").unwrap()
}
