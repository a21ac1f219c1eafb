//! What one process has in memory, from its own status file. Knows no limits.

use std::io;
use std::path::Path;

use serde::Serialize;

use super::Roots;
use crate::units::Bytes;

/// What a process has in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ProcessMemory {
    /// All that is resident, mapped files included.
    pub resident: Bytes,
    /// The part of it that is anonymous.
    pub anonymous: Bytes,
    /// The part of it that is mapped from files.
    pub mapped: Bytes,
    /// The part of it that is shared memory.
    pub shared: Bytes,
    /// The most that was ever resident at once.
    pub peak: Bytes,
    /// Addresses in use, backed by memory or not.
    pub addresses: Bytes,
}

impl ProcessMemory {
    /// Returns what the system can't take back without swapping.
    pub fn unreclaimable(&self) -> Bytes {
        self.anonymous + self.shared
    }
}

/// Reads what this process has in memory.
pub fn process_memory(roots: &Roots) -> io::Result<ProcessMemory> {
    read(&roots.proc.join("self/status"))
}

/// Reads what another process has in memory.
pub fn process_memory_of(roots: &Roots, pid: u32) -> io::Result<ProcessMemory> {
    read(&roots.proc.join(pid.to_string()).join("status"))
}

fn read(path: &Path) -> io::Result<ProcessMemory> {
    let text = std::fs::read_to_string(path)?;
    let field = |name: &str| {
        let value = super::text::kibibytes(&text, name);
        value.ok_or_else(|| {
            let what = format!("{} has no usable line {name}", path.display());
            io::Error::new(io::ErrorKind::InvalidData, what)
        })
    };
    Ok(ProcessMemory {
        resident: field("VmRSS")?,
        anonymous: field("RssAnon")?,
        mapped: field("RssFile")?,
        shared: field("RssShmem")?,
        peak: field("VmHWM")?,
        addresses: field("VmSize")?,
    })
}
