//! A place of its own for each test: where processes meet, and what is kept. Every `toko` of a test runs in it.

use std::{
    cell::Cell,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::server::{Server, Starting};

/// Longest wait for anything that must happen; far more than it takes on a machine that is busy.
pub(crate) const PATIENCE: Duration = Duration::from_mins(2);

/// A state root and a directory for leases that nobody else uses.
pub(crate) struct Place {
    directory: TempDir,
    limit_bytes: Cell<Option<u64>>,
}

/// What a finished command left behind.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) code: Option<i32>,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), limit_bytes: Cell::new(None) }
    }

    /// Limits what the models of all processes take together, from now on.
    pub(crate) fn limit(&self, bytes: u64) {
        self.limit_bytes.set(Some(bytes));
    }

    /// Names a file in this place.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Where the policy and the journal are.
    pub(crate) fn state_root(&self) -> PathBuf {
        self.path("state")
    }

    /// Where processes tell what they hold.
    pub(crate) fn leases(&self) -> PathBuf {
        self.path("runtime/tokonoma")
    }

    /// Prepares a program with nothing of the caller's environment that `toko` looks at.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            let is_ours = name.starts_with("TOKO_") || name.starts_with("XDG_");
            if is_ours || ["RUST_LOG", "NO_COLOR", "CLICOLOR_FORCE"].contains(&&*name) {
                command.env_remove(name);
            }
        }
        let runtime = self.path("runtime");
        std::fs::create_dir_all(&runtime).unwrap();
        command.env("HOME", self.directory.path()).env("XDG_RUNTIME_DIR", runtime);
        command.env("TOKO_HOME", self.state_root());
        if let Some(bytes) = self.limit_bytes.get() {
            command.env("TOKO_MEMORY_LIMIT", format!("{bytes}B"));
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Prepares `toko`.
    pub(crate) fn toko(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(env!("CARGO_BIN_EXE_toko"));
        command.args(arguments);
        command
    }

    /// Runs `toko` to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Finished {
        Finished::of(self.toko(arguments).output().unwrap())
    }

    /// Runs a line as a shell does.
    pub(crate) fn shell(&self, line: &str) -> Finished {
        Finished::of(self.command("sh").args(["-c", line]).output().unwrap())
    }

    /// Starts a server, and does not wait for it.
    pub(crate) fn start(&self, arguments: &[&str]) -> Starting {
        let mut command = self.toko(&["serve", "--port", "0"]);
        Starting::new(command.args(arguments))
    }

    /// Starts a server that must be let in.
    #[track_caller]
    pub(crate) fn serve(&self, arguments: &[&str]) -> Server {
        self.start(arguments).ready().unwrap()
    }

    /// Asks another process what a load would be told.
    pub(crate) fn explain(&self, model: &str, arguments: &[&str]) -> Explained {
        let mut command = self.toko(&["policy", "explain", model, "--json"]);
        let Finished { stdout, stderr, code } =
            Finished::of(command.args(arguments).output().unwrap());
        let json = serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{stdout}{stderr}"));
        Explained { json, code }
    }

    /// Returns what a load takes, by what another process says.
    pub(crate) fn total(&self, model: &str, arguments: &[&str]) -> u64 {
        let Explained { json, .. } = self.explain(model, arguments);
        json["need"]["total_bytes"].as_u64().unwrap()
    }

    /// Returns who holds memory, by what another process says.
    pub(crate) fn holders(&self) -> Vec<Value> {
        let listed = self.run(&["ps", "--json"]);
        let listed: Value =
            serde_json::from_str(&listed.stdout).unwrap_or_else(|_| panic!("{listed:?}"));
        listed["holders"].as_array().unwrap().clone()
    }

    /// Checks that no trace of earlier processes is charged, and that a model can be loaded.
    #[track_caller]
    pub(crate) fn assert_free(&self) {
        let Explained { json, code } = self.explain("embedded", &[]);
        assert_eq!((&json["verdict"], code), (&Value::from("admit"), Some(0)), "{json}");
        assert_eq!(json["holders"], Value::Array(Vec::new()));
        assert_eq!(
            (&json["have"]["resident_bytes"], &json["have"]["reserved_bytes"]),
            (&0.into(), &0.into())
        );
    }
}

/// What a load would be told.
pub(crate) struct Explained {
    pub(crate) json: Value,
    pub(crate) code: Option<i32>,
}

impl Finished {
    pub(crate) fn of(output: Output) -> Self {
        Self {
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
            code: output.status.code(),
        }
    }

    /// Checks that it was refused for want of memory, in words.
    #[track_caller]
    pub(crate) fn assert_refused(&self) {
        assert_eq!(self.code, Some(4), "{self:?}");
        assert!(self.stderr.starts_with("toko: ") && self.stdout.is_empty(), "{self:?}");
    }
}

/// Asks again and again until there is an answer; each time it is asked, something is looked at that changes.
#[track_caller]
pub(crate) fn until<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(began.elapsed() < PATIENCE, "it did not happen");
        std::thread::yield_now();
    }
}

/// Turns a path into an argument.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
