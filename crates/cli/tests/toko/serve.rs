//! `toko serve`: the address line, one request, and how it stops.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, ChildStderr, Command, Stdio},
};

use serde_json::Value;

use crate::command::{golden_answer, run, text, toko};

/// A running server, ended with the test.
pub(crate) struct Server {
    child: Child,
    stderr: BufReader<ChildStderr>,
    address: String,
}

impl Server {
    fn start(arguments: &[&str]) -> Self {
        Self::spawn(toko(&["serve", "--port", "0"]).args(arguments))
    }

    /// Starts a server and waits until it listens.
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut lines = String::new();
        let address = loop {
            let start = lines.len();
            assert_ne!(stderr.read_line(&mut lines).unwrap(), 0, "it ended: {lines}");
            let line = lines[start..].trim_end();
            if let Some(address) = line.strip_prefix("listening on http://") {
                break address.to_owned();
            }
        };
        Self { child, stderr, address }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Ends it without a chance to tidy up.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends one request and returns the whole answer.
    pub(crate) fn ask(&self, head: &str, body: &str) -> String {
        self.ask_with(head, "X-Request-Id: 1", body)
    }

    /// Sends one request with a header more.
    fn ask_with(&self, head: &str, header: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        write!(
            stream,
            "{head} HTTP/1.1\r\nHost: {}\r\n{header}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}",
            self.address
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn signal(&self, name: &str) {
        let command = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &command]).status().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn it_tells_its_address_answers_and_ends_well_on_sigterm() {
    let question = "What is the capital of France?";
    let mut server = Server::start(&["--alias", "sprout"]);
    assert!(server.ask("GET /health", "").starts_with("HTTP/1.1 200"));
    let models = server.ask("GET /v1/models", "");
    assert!(models.contains("\"embedded\""), "{models}");
    let body = serde_json::json!({
        "model": "sprout", "temperature": 0,
        "messages": [{"role": "user", "content": question}],
    });
    let answer = server.ask("POST /v1/chat/completions", &body.to_string());
    let (_, json) = answer.split_once("\r\n\r\n").unwrap();
    let json: Value = serde_json::from_str(json).unwrap();
    assert_eq!(json["choices"][0]["message"]["content"], golden_answer(question));

    server.signal("TERM");
    let mut rest = String::new();
    server.stderr.read_to_string(&mut rest).unwrap();
    assert_eq!(server.child.wait().unwrap().code(), Some(0), "{rest}");
    assert!(rest.starts_with("stopping "), "{rest}");
}

#[test]
fn what_was_computed_is_kept_unless_no_token_may_be() {
    let cached = |arguments: &[&str]| {
        let server = Server::start(arguments);
        let question = "Tell me a story about a fox named Pip. ".repeat(12);
        let body = serde_json::json!({
            "model": "default", "max_tokens": 1, "messages": [{"role": "user", "content": question}],
        });
        let ask = || {
            let answer = server.ask("POST /v1/chat/completions", &body.to_string());
            let (_, json) = answer.split_once("\r\n\r\n").unwrap();
            let json: Value = serde_json::from_str(json).unwrap();
            json["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
        };
        (ask(), ask())
    };
    assert_eq!(cached(&["--prefix-cache-tokens", "0"]), (0, 0));
    assert_eq!(cached(&["--prefix-cache-tokens", "64"]), (0, 64));
    let (first, second) = cached(&[]);
    assert!(first == 0 && second >= 128 && second % 64 == 0, "{first}, {second}");
}

#[test]
fn sigint_is_an_end_like_sigterm() {
    let mut server = Server::start(&[]);
    server.signal("INT");
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}

#[test]
fn an_address_that_others_can_reach_is_refused_unless_wanted() {
    let error = run(&["serve", "--host", "0.0.0.0", "--port", "0"]).error(2);
    assert!(error.contains("no API keys") && error.contains("--insecure"), "{error}");
    let server = Server::start(&["--host", "0.0.0.0", "--insecure"]);
    assert!(server.address.starts_with("0.0.0.0:"), "{}", server.address);
}

/// Asks for the models with a key.
fn models(server: &Server, key: &str) -> String {
    server.ask_with("GET /v1/models", &format!("Authorization: Bearer {key}"), "")
}

#[test]
fn keys_of_the_flag_and_the_file_are_asked_for_and_open_the_server_to_others() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    std::fs::write(&file, "# Alice\nsk-alice\n\n  sk-bob  \r\n").unwrap();
    let arguments = [
        "--host",
        "0.0.0.0",
        "--api-key",
        "sk-carol",
        "--api-key",
        "sk-dora",
        "--api-key-file",
        text(&file),
    ];
    let server = Server::start(&arguments);
    assert!(server.ask("GET /v1/models", "").starts_with("HTTP/1.1 401"));
    for key in ["sk-alice", "sk-bob", "sk-carol", "sk-dora"] {
        let answer = models(&server, key);
        assert!(answer.starts_with("HTTP/1.1 200"), "{key}: {answer}");
    }
    assert!(models(&server, "#").starts_with("HTTP/1.1 401"));
    assert!(server.ask("GET /health", "").starts_with("HTTP/1.1 200"));
}

#[test]
fn a_key_that_no_client_can_send_is_refused_and_not_shown() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    std::fs::write(&file, "fine\nsecret word\n").unwrap();
    let error = run(&["serve", "--port", "0", "--api-key-file", text(&file)]).error(2);
    assert!(error.contains("keys line 2") && !error.contains("secret"), "{error}");
    let error = run(&["serve", "--port", "0", "--api-key", "secret word"]).error(2);
    assert!(error.contains("--api-key") && !error.contains("secret"), "{error}");
    std::fs::write(&file, "# nobody yet\n").unwrap();
    let error = run(&["serve", "--port", "0", "--api-key-file", text(&file)]).error(2);
    assert!(error.contains("no key"), "{error}");
    let error = run(&["serve", "--port", "0", "--api-key-file", "missing-keys"]).error(1);
    assert!(error.contains("missing-keys"), "{error}");
}

#[test]
fn a_key_of_the_environment_counts_and_the_help_does_not_show_it() {
    let help = toko(&["serve", "--help"]).env("TOKO_API_KEY", "sk-hidden").output().unwrap();
    assert!(!String::from_utf8(help.stdout).unwrap().contains("sk-hidden"));
    let empty = toko(&["serve", "--port", "0"]).env("TOKO_API_KEY", "").output().unwrap();
    assert_eq!(empty.status.code(), Some(2), "an empty key must not mean none");
}

#[test]
fn origins_are_separated_by_commas() {
    let server = Server::start(&["--cors-origins", "https://a.example.org,https://B.example.org/"]);
    for origin in ["https://a.example.org", "https://b.example.org"] {
        let answer = server.ask_with("GET /health", &format!("Origin: {origin}"), "");
        assert!(answer.contains(&format!("access-control-allow-origin: {origin}\r\n")), "{answer}");
    }
    let refused = run(&["serve", "--port", "0", "--cors-origins", "example.org"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("such as https://"), "{}", refused.stderr);
}

#[test]
fn a_port_in_use_is_told_before_the_model_is_loaded() {
    let server = Server::start(&[]);
    let (_, port) = server.address.rsplit_once(':').unwrap();
    let error = run(&["serve", "--port", port]).error(1);
    assert!(error.contains(port) && error.contains("--port"), "{error}");
}

#[test]
fn a_missing_model_is_not_found() {
    let error = run(&["serve", "missing.gguf", "--port", "0"]).error(3);
    assert!(error.contains("missing.gguf"), "{error}");
}

#[test]
fn ps_lists_the_models_of_a_server_with_their_replicas() {
    let directory = tempfile::tempdir().unwrap();
    let other = directory.path().join("tiny-qwen3.gguf");
    std::fs::write(&other, toko_fixtures::tiny_model("qwen3", "F32")).unwrap();
    let server = Server::start(&["--replicas", "3", "embedded", text(&other)]);
    let listed = run(&["ps", "--host", &server.address]).answer();
    let rows: Vec<Vec<&str>> =
        listed.lines().map(|line| line.split_whitespace().collect()).collect();
    let head = ["MODEL", "STATE", "CONTEXT", "SIZE", "IDLE", "LEASED", "WAITING", "MEMORY", "KEEP"];
    assert_eq!(rows[0], head);
    assert_eq!(rows[1][..7], ["embedded", "ready", "1024", "3", "3", "0", "0"]);
    assert_eq!(rows[1][8..], ["MiB", "on"], "{listed}");
    assert_eq!(rows[2], ["tiny-qwen3", "unloaded", "-", "-", "-", "-", "-", "-", "on"]);
    // Below them the machine: its head, this server's one loaded model, and the sum.
    assert_eq!(rows[4], ["PROCESS", "MODEL", "MEMORY", "STATE", "UNUSED"]);
    assert_eq!(rows[5][..5], ["toko", "serve,", "process", &server.id().to_string(), "embedded"]);
    assert_eq!(rows.len(), 7, "{listed}");

    let body = r#"{"model":"tiny-qwen3","prompt":"a","max_tokens":1}"#;
    let answer = server.ask("POST /v1/completions", body);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let listed = run(&["ps", "--host", &server.address, "--json"]).answer();
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed["models"][1]["state"], "ready");
}

#[test]
fn ps_says_when_there_is_no_server_or_no_key() {
    // Port 1 is privileged and nobody listens there.
    let error = run(&["ps", "--host", "127.0.0.1:1"]).error(5);
    assert!(error.contains("no server answers at http://127.0.0.1:1/"), "{error}");
    let server = Server::start(&["--api-key", "sesame"]);
    let error = run(&["ps", "--host", &server.address]).error(1);
    assert!(error.contains("an API key is required"), "{error}");
    run(&["ps", "--host", &server.address, "--api-key", "sesame"]).answer();
}

#[test]
fn two_models_of_one_name_are_refused() {
    let error = run(&["serve", "--port", "0", "a/m.gguf", "b/m.gguf"]).error(2);
    assert!(error.contains("two of the models are called m"), "{error}");
    let error = run(&["serve", "--port", "0", "--model", "embedded", "embedded"]).error(2);
    assert!(error.contains("given twice"), "{error}");
}
