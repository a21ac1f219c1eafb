//! `toko doctor`: whether this machine is in order for running models, and what is wrong where it is not.
//!
//! Looks at everything before anything else of this program may touch it; mends nothing.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Serialize;
use toko_admission::{
    machine::{self, Basis},
    policy_file::{self, FILE_NAME, Loaded},
    probe::{Reading, Roots},
    steward::{Memory, Steward},
    units::Bytes,
};
use toko_kernels::{isa::Tier, pool::default_threads};

use crate::{
    args::DoctorArgs,
    failure::Failure,
    memory,
    output::{Output, print_json},
    refusal::{holder_line, row, seconds},
};

/// Longest wait for processes that decide.
const PATIENCE: Duration = Duration::from_secs(2);

/// Everything that was looked at.
#[derive(Debug, Serialize)]
struct Report {
    /// What is wrong, in words; nothing where all is well.
    findings: Vec<String>,
    version: &'static str,
    cpu: Cpu,
    memory: Memory,
    reading: Reading,
    policy: Policy,
    folders: Vec<Folder>,
    leases: Leases,
    last_crash: Option<Crash>,
    /// Models that are not loaded again until somebody says so.
    held: Vec<String>,
}

/// A load that ended with its process.
#[derive(Debug, Serialize)]
struct Crash {
    model: String,
    bytes: Bytes,
    at_ms: u64,
    program: Option<String>,
}

#[derive(Debug, Serialize)]
struct Cpu {
    /// The kernels in use.
    tier: &'static str,
    threads: usize,
}

#[derive(Debug, Serialize)]
struct Policy {
    #[serde(flatten)]
    loaded: Option<Loaded>,
    file: PathBuf,
}

/// A folder of ours, and who may use it.
#[derive(Debug, Serialize)]
struct Folder {
    purpose: &'static str,
    path: PathBuf,
    /// Permissions in octal; none where it does not exist yet.
    mode: Option<String>,
}

#[derive(Debug, Default, Serialize)]
struct Leases {
    live: usize,
    /// Left behind by processes that have ended.
    stale: usize,
    unreadable: usize,
}

/// Prints what was found.
pub(crate) fn doctor(args: &DoctorArgs, output: Output) -> anyhow::Result<()> {
    let steward = memory::look_on("doctor", args.memory.limit);
    let report = Report::of(&steward, args.kernel.tier.unwrap_or_else(Tier::detect));
    if args.json {
        print_json(&report)?;
    } else {
        report.print(output)?;
    }
    match report.findings.as_slice() {
        [] => Ok(()),
        _ => Err(Failure::Told { code: 1 }.into()),
    }
}

impl Report {
    fn of(steward: &Steward, tier: Tier) -> Self {
        let settings = steward.settings();
        let mut findings = Vec::new();
        // Before the survey, which makes the folder of leases private again.
        let folders = vec![
            Folder::of("state", &settings.state_root, 0o022, &mut findings),
            Folder::of("leases", &settings.leases, 0o077, &mut findings),
        ];
        let policy = policy(&settings.state_root, &mut findings);
        let leases = leases(&settings.leases, &settings.roots, &mut findings);
        let reading = steward.reading();
        findings.extend(reading.warnings.iter().cloned());
        if reading.bounds.is_empty() {
            findings.push("how much memory there is could not be read".to_owned());
        }
        let memory = steward.memory(&[]);
        if memory.is_pressed {
            findings.push("the system is short of memory at this moment".to_owned());
        }
        if memory.ceiling_bytes == Bytes::ZERO {
            findings.push(format!("{} leaves nothing for models", memory.ceiling_by));
        }
        let cpu = Cpu { tier: tier.name(), threads: default_threads() };
        let past = steward.past();
        findings.extend(past.warnings.iter().cloned());
        findings.extend(past.held.iter().map(|model| {
            format!("loading {model} has ended the program twice; --force tries it again")
        }));
        let last_crash = past.crashes.last().map(|crash| Crash {
            model: crash.model.clone(),
            bytes: crash.bytes,
            at_ms: crash.at_ms,
            program: crash.program.clone(),
        });
        let held = past.held.iter().cloned().collect();
        let version = env!("CARGO_PKG_VERSION");
        Self { findings, version, cpu, memory, reading, policy, folders, leases, last_crash, held }
    }

    fn print(&self, output: Output) -> anyhow::Result<()> {
        let line = |name: &str, value: &str| output.line(&format!("{name:<18} {value}"));
        output.heading("Machine")?;
        line("version", self.version)?;
        line("processor", &format!("{} kernels, {} threads", self.cpu.tier, self.cpu.threads))?;
        output.heading("Memory")?;
        for bound in &self.reading.bounds {
            let used = format!("{}, {} used", bound.limiter, bound.used);
            output.line(&row("limit", bound.limit, &used))?;
        }
        let Memory { available_bytes, bound_by, ceiling_bytes, ceiling_by, .. } = &self.memory;
        if let Some(available) = available_bytes {
            output.line(&row("available", *available, &format!("bound by {bound_by}")))?;
        }
        output.line(&row("for models", *ceiling_bytes, ceiling_by))?;
        output.line(&row("in use by models", self.memory.charged_bytes, ""))?;
        output.line(&row("stays free", self.memory.emergency_reserve_bytes, ""))?;
        for (name, percent) in
            [("own", self.reading.pressure.own), ("machine", self.reading.pressure.host)]
        {
            let percent = percent.map_or_else(|| "unknown".to_owned(), |it| format!("{it} %"));
            line(&format!("pressure, {name}"), &percent)?;
        }
        output.heading("Policy")?;
        line("file", &self.policy.file.display().to_string())?;
        if let Some(loaded) = &self.policy.loaded {
            line("policy", &loaded.policy.to_string())?;
        }
        output.heading("Processes")?;
        line("leases", &format!("{} live, {} stale", self.leases.live, self.leases.stale))?;
        for holder in &self.memory.holders {
            output.line(&holder_line(holder))?;
        }
        for folder in &self.folders {
            let mode = folder.mode.as_deref().unwrap_or("does not exist yet");
            line(folder.purpose, &format!("{} ({mode})", folder.path.display()))?;
        }
        if let Some(Crash { model, bytes, at_ms, program }) = &self.last_crash {
            let program = program.as_deref().unwrap_or("a program");
            let ago = seconds(memory::now_ms().saturating_sub(*at_ms) / 1000);
            line("last crash", &format!("{program} while loading {model} ({bytes}), {ago} ago"))?;
        }
        if self.findings.is_empty() {
            return Ok(output.line("All is well.")?);
        }
        output.heading("Findings")?;
        self.findings.iter().try_for_each(|finding| Ok(output.line(finding)?))
    }
}

impl Folder {
    /// Looks at a folder; `forbidden` are the permissions that nobody else may have.
    fn of(purpose: &'static str, path: &Path, forbidden: u32, findings: &mut Vec<String>) -> Self {
        let found = fs::symlink_metadata(path);
        let name = path.display();
        match &found {
            Ok(found) if !found.is_dir() => {
                findings.push(format!("{name} is no folder, so that nothing can be kept there"));
            }
            Ok(found) if permissions(found) & forbidden != 0 => {
                findings.push(format!("{name} is open to other users; chmod 700 closes it"));
            }
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                findings.push(format!("{name} cannot be looked at: {error}"));
            }
            _ => {}
        }
        Self {
            purpose,
            path: path.to_owned(),
            mode: found.ok().map(|found| format!("{:04o}", permissions(&found))),
        }
    }
}

fn policy(root: &Path, findings: &mut Vec<String>) -> Policy {
    let loaded = match policy_file::load(root) {
        Ok(loaded) => {
            findings.extend(loaded.warning.clone());
            Some(loaded)
        }
        Err(error) => {
            findings.push(error.to_string());
            None
        }
    };
    Policy { loaded, file: root.join(FILE_NAME) }
}

fn leases(directory: &Path, roots: &Roots, findings: &mut Vec<String>) -> Leases {
    let left = lease_files(directory);
    match machine::survey(directory, roots, PATIENCE) {
        Ok(others) => {
            findings.extend(others.warnings);
            let unreadable = others.holdings.iter().filter(|it| it.basis != Basis::Record).count();
            let live = others.holdings.len();
            Leases { live, stale: left.saturating_sub(live), unreadable }
        }
        Err(error) => {
            findings.push(format!("what other processes hold is not known: {error}"));
            Leases::default()
        }
    }
}

/// Counts the leases that have a file, of live processes and of dead ones.
fn lease_files(directory: &Path) -> usize {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let is_lease = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        name.to_string_lossy().strip_suffix(".lock").is_some_and(|id| id.contains('-'))
    };
    entries.filter(is_lease).count()
}

fn permissions(found: &fs::Metadata) -> u32 {
    use std::os::unix::fs::MetadataExt as _;

    found.mode() & 0o7777
}
