//! How much memory the machine has left.

pub mod process;
mod text;

use std::path::PathBuf;

/// Where the system's own files are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roots {
    /// The directory of processes.
    pub proc: PathBuf,
    /// The directory of control groups.
    pub cgroup: PathBuf,
}

impl Roots {
    /// Returns where the files of the running system are.
    pub fn system() -> Self {
        Self { proc: "/proc".into(), cgroup: "/sys/fs/cgroup".into() }
    }
}
