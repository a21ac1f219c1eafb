//! The one door to the binary: arguments and standard input, to what was printed and the exit code.

use std::{
    io::Write as _,
    path::Path,
    process::{Command, Output, Stdio},
    sync::OnceLock,
};

/// What a finished command left behind.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) code: Option<i32>,
}

impl Finished {
    /// Returns standard output of a command that must have done its work without a word on the side.
    #[track_caller]
    pub(crate) fn answer(self) -> String {
        assert_eq!((self.code, self.stderr.as_str()), (Some(0), ""), "stdout: {}", self.stdout);
        self.stdout
    }

    /// Returns the one line of error of a command that must have failed with `code`.
    #[track_caller]
    pub(crate) fn error(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:?}");
        let line = self.stderr.strip_suffix('\n').unwrap_or_default();
        assert!(line.starts_with("toko: ") && !line.contains('\n'), "one line: {:?}", self.stderr);
        assert!(!line.contains("internal error"), "{line}");
        line.to_owned()
    }
}

/// Prepares `toko` with nothing of the caller's environment that it looks at.
pub(crate) fn toko(arguments: &[&str]) -> Command {
    static HOME: OnceLock<tempfile::TempDir> = OnceLock::new();
    // The policy, the leases and the history of these tests are nobody else's.
    toko_in(HOME.get_or_init(|| tempfile::tempdir().unwrap()).path(), arguments)
}

/// Prepares `toko` with a state root of its own.
pub(crate) fn toko_in(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_toko"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TOKO_") {
            command.env_remove(name);
        }
    }
    for name in ["NO_COLOR", "CLICOLOR_FORCE", "COLUMNS", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"] {
        command.env_remove(name);
    }
    command.env("HOME", root).env("TOKO_HOME", root);
    command.args(arguments);
    command
}

/// Runs `toko` with nothing on standard input.
pub(crate) fn run(arguments: &[&str]) -> Finished {
    finish(toko(arguments).stdin(Stdio::null()).output().unwrap())
}

/// Runs `toko` with nothing on standard input and a state root of its own.
pub(crate) fn run_in(root: &Path, arguments: &[&str]) -> Finished {
    finish(toko_in(root, arguments).stdin(Stdio::null()).output().unwrap())
}

/// Runs `toko` with a text on standard input.
pub(crate) fn run_with_stdin(arguments: &[&str], stdin: &[u8]) -> Finished {
    let mut child = toko(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that fails before it reads closes the pipe; what it printed is what counts.
    drop(child.stdin.take().unwrap().write_all(stdin));
    finish(child.wait_with_output().unwrap())
}

/// Turns a path into an argument.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Returns the golden values of the embedded model for one user's question.
pub(crate) fn golden(question: &str) -> serde_json::Value {
    let prompt = format!("<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n");
    let all = toko_fixtures::embedded_model_golden();
    let found = all.as_array().unwrap().iter().find(|entry| entry["prompt"] == *prompt);
    found.unwrap_or_else(|| panic!("no golden values for {question:?}")).clone()
}

/// Returns the golden answer as a person sees it: without the end token.
pub(crate) fn golden_answer(question: &str) -> String {
    let golden = golden(question);
    let answer = golden["greedy_text"].as_str().unwrap();
    answer.strip_suffix("<|im_end|>").expect("a short answer is complete").to_owned()
}

/// Returns what a command left behind.
pub(crate) fn finish(output: Output) -> Finished {
    Finished {
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
        code: output.status.code(),
    }
}
