//! How much memory is left, and what the limit is.
//!
//! Invariant: pages of mapped files are never counted as used, so a reading tells what could be made free, and whoever
//! loads must subtract what was promised and is not [visible](crate::machine::record::Holdings::visible) in it. What
//! can't be read is unknown, never nothing and never without end. Every path starts at a root that is passed in.

mod cgroup;
pub mod devices;
pub mod pressure;
pub mod process;
mod text;

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use self::cgroup::Groups;
use self::pressure::Pressure;
use crate::units::Bytes;

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

/// What limits memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Limiter {
    /// The machine's memory.
    Host,
    /// The hard limit of a control group.
    CgroupMax {
        /// The group's directory.
        path: PathBuf,
    },
    /// The limit above which a control group is slowed down.
    CgroupHigh {
        /// The group's directory.
        path: PathBuf,
    },
    /// The limit of a control group of version 1.
    CgroupV1 {
        /// The group's directory.
        path: PathBuf,
    },
    /// What this process may have in addresses.
    AddressSpace,
}

impl fmt::Display for Limiter {
    /// Names the limit so that a reader finds where it is set.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => write!(f, "the machine's memory"),
            Self::CgroupMax { path } => write!(f, "{}", path.join("memory.max").display()),
            Self::CgroupHigh { path } => write!(f, "{}", path.join("memory.high").display()),
            Self::CgroupV1 { path } => {
                write!(f, "{}", path.join("memory.limit_in_bytes").display())
            }
            Self::AddressSpace => write!(f, "the limit of addresses (ulimit -v)"),
        }
    }
}

/// A limit and what is used of it for good.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Bound {
    /// What the limit is.
    pub limiter: Limiter,
    /// How much it allows.
    pub limit: Bytes,
    /// How much of it is used and can't be taken back.
    pub used: Bytes,
}

impl Bound {
    /// Returns what is left; nothing where more is used than allowed.
    pub fn room(&self) -> Bytes {
        self.limit.left_after(self.used)
    }
}

/// What was read at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Reading {
    /// All memory of the machine.
    pub host_total: Option<Bytes>,
    /// The part of it that holds nothing, not even a file.
    pub host_free: Option<Bytes>,
    /// Every limit that is set and could be read.
    pub bounds: Vec<Bound>,
    /// How long programs had to wait for memory.
    pub pressure: Pressure,
    /// What could not be read, in words.
    pub warnings: Vec<String>,
}

impl Reading {
    /// Returns what is left under the strictest limit; `None` where no limit is known.
    pub fn available(&self) -> Option<Bytes> {
        self.binding().map(Bound::room)
    }

    /// Returns the strictest limit, the first of equals.
    pub fn binding(&self) -> Option<&Bound> {
        self.bounds.iter().min_by_key(|bound| bound.room())
    }
}

/// Reads what is left now.
pub fn read(roots: &Roots) -> Reading {
    let mut warnings = Vec::new();
    let status = text::read(&roots.proc.join("self/status"), &mut warnings).unwrap_or_default();
    let host = host(roots, &mut warnings);
    let groups = Groups::find(roots, &mut warnings);
    let own = ["RssAnon", "RssShmem"].map(|name| text::kibibytes(&status, name));
    let own = own.into_iter().flatten().sum();

    let mut bounds = Vec::from_iter(host.clone().map(|(bound, _)| bound));
    bounds.extend(groups.bounds(own, &mut warnings));
    bounds.extend(address_space(roots, &status, &mut warnings));
    let pressure = Pressure {
        own: groups.pressure_file().and_then(|path| pressure::read(&path, &mut warnings)),
        host: pressure::read(&roots.proc.join("pressure/memory"), &mut warnings),
    };
    let (host_total, host_free) = host.map(|(bound, free)| (bound.limit, free)).unzip();
    Reading { host_total, host_free: host_free.flatten(), bounds, pressure, warnings }
}

/// What the system calls available counts pages of files as free, mapped ones too.
fn host(roots: &Roots, warnings: &mut Vec<String>) -> Option<(Bound, Option<Bytes>)> {
    let path = roots.proc.join("meminfo");
    let text = text::read(&path, warnings).unwrap_or_default();
    let fields = ["MemTotal", "MemAvailable"].map(|name| text::kibibytes(&text, name));
    let [Some(total), Some(available)] = fields else {
        warnings.push(format!("{} does not tell how much memory is available", path.display()));
        return None;
    };
    let bound = Bound { limiter: Limiter::Host, limit: total, used: total.left_after(available) };
    Some((bound, text::kibibytes(&text, "MemFree")))
}

fn address_space(roots: &Roots, status: &str, warnings: &mut Vec<String>) -> Option<Bound> {
    let text = text::read(&roots.proc.join("self/limits"), warnings)?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    let limit = line.split_whitespace().next().filter(|soft| *soft != "unlimited")?;
    let (limit, used) = (text::number(limit), text::kibibytes(status, "VmSize"));
    let (Some(limit), Some(used)) = (limit, used) else {
        warnings.push("the limit of addresses can't be understood".to_owned());
        return None;
    };
    Some(Bound { limiter: Limiter::AddressSpace, limit: Bytes::new(limit), used })
}
