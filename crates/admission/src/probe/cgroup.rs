//! Limits of the control groups that this process is in, versions 1 and 2, alone or together.
//!
//! Invariant: pages of files are never counted as used, and nothing is subtracted from a group's total to find out what
//! is. Knows nothing of the machine's own memory.

use std::path::{Path, PathBuf};

use super::text::{self, Garbled};
use super::{Bound, Limiter, Roots};
use crate::units::Bytes;

/// No machine has this much. The kernel writes "no limit" in version 1 as the largest whole number of pages, whose size
/// differs.
const NO_LIMIT: u64 = 1 << 62;

/// A group that goes over its limit by less than this part of it is just about to be reclaimed from.
const SLACK: u64 = 64;

/// The groups of this process.
pub(super) struct Groups {
    /// From the process's own group up to the highest that can be seen.
    v2: Vec<PathBuf>,
    v1: Vec<PathBuf>,
}

impl Groups {
    /// Finds out where the process is.
    pub(super) fn find(roots: &Roots, warnings: &mut Vec<String>) -> Self {
        let path = roots.proc.join("self/cgroup");
        let text = text::read(&path, warnings).unwrap_or_default();
        let mut found = Self { v2: Vec::new(), v1: Vec::new() };
        let mut is_understood = false;
        for line in text.lines() {
            let mut fields = line.splitn(3, ':');
            let (Some(id), Some(controllers), Some(path)) =
                (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            is_understood = true;
            if id == "0" && controllers.is_empty() {
                found.v2 = ancestry(&v2_mount(roots), path);
            } else if controllers.split(',').any(|name| name == "memory") {
                found.v1 = ancestry(&v1_mount(roots, controllers), path);
            }
        }
        if !is_understood && !text.is_empty() {
            warnings.push(format!("{} names no control group", path.display()));
        }
        if !is_understood {
            // A process can't leave the highest group, so its limits hold wherever the process is.
            found.v2 = vec![v2_mount(roots)];
            found.v1 = vec![roots.cgroup.join("memory")];
        }
        found
    }

    /// Returns the file with the memory pressure of the process's own group.
    pub(super) fn pressure_file(&self) -> Option<PathBuf> {
        self.v2.first().map(|group| group.join("memory.pressure"))
    }

    /// Returns a bound for every limit that is set. `own` is what this process surely uses.
    pub(super) fn bounds(&self, own: Bytes, warnings: &mut Vec<String>) -> Vec<Bound> {
        let mut bounds = Vec::new();
        for group in &self.v2 {
            let hard = limit(&group.join("memory.max"), warnings);
            let soft = limit(&group.join("memory.high"), warnings);
            if hard.is_none() && soft.is_none() {
                continue;
            }
            let usage = Usage {
                unreclaimable: unreclaimable_v2(&group.join("memory.stat"), warnings),
                total: size(&group.join("memory.current"), warnings),
                own,
            };
            let path = || group.clone();
            bounds.extend(hard.map(|limit| Bound {
                limiter: Limiter::CgroupMax { path: path() },
                limit,
                used: usage.against_hard(limit),
            }));
            bounds.extend(soft.map(|limit| Bound {
                limiter: Limiter::CgroupHigh { path: path() },
                limit,
                used: usage.used(),
            }));
        }
        for group in &self.v1 {
            let Some(limit) = limit(&group.join("memory.limit_in_bytes"), warnings) else {
                continue;
            };
            let usage = Usage {
                unreclaimable: unreclaimable_v1(group, warnings),
                total: size(&group.join("memory.usage_in_bytes"), warnings),
                own,
            };
            let limiter = Limiter::CgroupV1 { path: group.clone() };
            bounds.push(Bound { limiter, limit, used: usage.against_hard(limit) });
        }
        bounds
    }
}

/// What a group uses, as far as it is known.
struct Usage {
    unreclaimable: Option<Bytes>,
    total: Option<Bytes>,
    own: Bytes,
}

impl Usage {
    /// The total, files included, is the only other upper bound where the parts are not known; where that is not known
    /// either, what this process uses is at least a lower bound.
    fn used(&self) -> Bytes {
        self.unreclaimable.or(self.total).unwrap_or(self.own)
    }

    /// A group stays clearly over a hard limit only where the kernel found nothing more to take back.
    fn against_hard(&self, limit: Bytes) -> Bytes {
        let most = limit + Bytes::new(limit.get() / SLACK);
        match self.total {
            Some(total) if total > most => self.used().max(total),
            _ => self.used(),
        }
    }
}

/// Version 2 has the whole directory to itself, unless version 1 is there too.
fn v2_mount(roots: &Roots) -> PathBuf {
    let beside_v1 = roots.cgroup.join("unified");
    if beside_v1.is_dir() { beside_v1 } else { roots.cgroup.clone() }
}

/// Controllers that are mounted together have a directory with all their names.
fn v1_mount(roots: &Roots, controllers: &str) -> PathBuf {
    let together = roots.cgroup.join(controllers);
    if together.is_dir() { together } else { roots.cgroup.join("memory") }
}

/// Returns a group's directory and those of its ancestors.
///
/// In a container the path may be given as it is outside, where the mount shows only a part of the tree, and a namespace
/// hides what lies above it as `..`: the part of the path that exists counts, else the mount's own group.
fn ancestry(mount: &Path, path: &str) -> Vec<PathBuf> {
    let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
    let names = if names.contains(&"..") { &[] } else { &names[..] };
    let directory =
        |names: &[&str]| names.iter().fold(mount.to_owned(), |path, name| path.join(name));
    let shown = (0..names.len()).map(|hidden| &names[hidden..]);
    let shown = shown.into_iter().find(|names| directory(names).is_dir()).unwrap_or_default();
    (0..=shown.len()).rev().map(|depth| directory(&shown[..depth])).collect()
}

fn limit(path: &Path, warnings: &mut Vec<String>) -> Option<Bytes> {
    let text = text::read(path, warnings)?;
    if text.trim() == "max" {
        return None;
    }
    parsed(path, &text, warnings).filter(|limit| limit.get() < NO_LIMIT)
}

fn size(path: &Path, warnings: &mut Vec<String>) -> Option<Bytes> {
    let text = text::read(path, warnings)?;
    parsed(path, &text, warnings)
}

fn parsed(path: &Path, text: &str, warnings: &mut Vec<String>) -> Option<Bytes> {
    let number = text::number(text.trim());
    if number.is_none() {
        warnings.push(format!("{} holds no size: {:?}", path.display(), excerpt(text)));
    }
    number.map(Bytes::new)
}

/// What can't be taken back without swapping. Shared memory is no part of `anon`.
fn unreclaimable_v2(stat: &Path, warnings: &mut Vec<String>) -> Option<Bytes> {
    let parts = |text: &str| {
        let part = |name| text::bytes(text, name);
        let anonymous = part("anon")?.ok_or(Garbled)?;
        let kernel = match part("kernel")? {
            Some(kernel) => kernel,
            // Kernels before 5.18 give only the parts.
            None => sum(text, &["slab", "kernel_stack", "pagetables", "percpu", "vmalloc"])?,
        };
        Ok(anonymous + sum(text, &["shmem", "unevictable"])? + kernel)
    };
    statistics(stat, parts, warnings)
}

fn unreclaimable_v1(group: &Path, warnings: &mut Vec<String>) -> Option<Bytes> {
    let parts = |text: &str| {
        // With the children's, where the kernel gives it.
        let part = |with_children, alone| match text::bytes(text, with_children)? {
            Some(size) => Ok(Some(size)),
            None => text::bytes(text, alone),
        };
        let anonymous = part("total_rss", "rss")?.ok_or(Garbled)?;
        let shared = part("total_shmem", "shmem")?.unwrap_or_default();
        let unevictable = part("total_unevictable", "unevictable")?.unwrap_or_default();
        Ok(anonymous + shared + unevictable)
    };
    let of_processes = statistics(&group.join("memory.stat"), parts, warnings)?;
    let of_kernel = size(&group.join("memory.kmem.usage_in_bytes"), warnings).unwrap_or_default();
    Some(of_processes + of_kernel)
}

fn statistics(
    path: &Path,
    sum: impl FnOnce(&str) -> Result<Bytes, Garbled>,
    warnings: &mut Vec<String>,
) -> Option<Bytes> {
    let text = text::read(path, warnings)?;
    let sum = sum(&text).ok();
    if sum.is_none() {
        warnings.push(format!("{} does not say what is used", path.display()));
    }
    sum
}

/// Adds up the lines that are there.
fn sum(text: &str, names: &[&str]) -> Result<Bytes, Garbled> {
    names.iter().map(|name| Ok(text::bytes(text, name)?.unwrap_or_default())).sum()
}

fn excerpt(text: &str) -> String {
    text.chars().take(40).collect()
}
