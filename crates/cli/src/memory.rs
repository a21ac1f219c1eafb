//! The one place where this process gets its steward: who it is, where its policy is, how much it may take.

use std::{
    env,
    path::PathBuf,
    process,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use toko_admission::{
    machine::record::Process,
    probe::Roots,
    scope,
    steward::Steward,
    surroundings::{self, Settings},
    units::Bytes,
};

use crate::{config, output::note};

/// Joins the processes of this machine for a command that loads models.
pub(crate) fn join(command: &str, limit: Option<Bytes>) -> Arc<Steward> {
    Arc::new(Steward::open(settings(command, limit)))
}

/// Looks at the machine's memory for a command that loads nothing; nobody is told.
pub(crate) fn look_on(command: &str, limit: Option<Bytes>) -> Steward {
    Steward::look_on(settings(command, limit))
}

/// Returns the time as the ledger's neighbours count it.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn settings(command: &str, limit: Option<Bytes>) -> Settings {
    let root = config::state_root().unwrap_or_else(temporary_root);
    let state_root = scope::key(&root, env::current_dir().ok().as_deref());
    Settings {
        leases: surroundings::lease_directory(config::runtime_directory().as_deref(), &state_root),
        roots: Roots::system(),
        limit,
        process: Process {
            program: format!("toko {command}"),
            pid: process::id(),
            started_ms: now_ms(),
            scope: state_root.to_string_lossy().into_owned(),
        },
        now_ms,
        state_root,
    }
}

/// Returns a place for whoever has no home: this user's own, and gone when the system is started anew.
fn temporary_root() -> PathBuf {
    let user = rustix::process::geteuid().as_raw();
    let root = env::temp_dir().join(format!("tokonoma-{user}"));
    note(&format!(
        "the memory policy is kept in {}; TOKO_HOME names a better place",
        root.display()
    ));
    root
}
