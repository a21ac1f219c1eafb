//! A `toko serve` that is starting, and one that answers.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::place::{Finished, PATIENCE};

/// A server of which nobody knows yet whether it is let in. It is killed when this is dropped.
pub(crate) struct Starting {
    child: Child,
    lines: Receiver<String>,
    told: String,
}

/// A server that answers. It is killed when this is dropped.
pub(crate) struct Server {
    starting: Starting,
    address: String,
}

impl Starting {
    pub(crate) fn new(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap();
        let (sender, lines) = channel();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || {
            let mut line = String::new();
            while stderr.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
                // Whoever is not interested any more has seen enough.
                drop(sender.send(std::mem::take(&mut line)));
            }
        });
        Self { child, lines, told: String::new() }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it answers, or has ended.
    pub(crate) fn ready(mut self) -> Result<Server, Finished> {
        loop {
            match self.line(PATIENCE) {
                Ok(Some(line)) => {
                    if let Some(address) = line.strip_prefix("listening on http://") {
                        let address = address.trim_end().to_owned();
                        return Ok(Server { starting: self, address });
                    }
                }
                Ok(None) => return Err(self.finished()),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    panic!("it neither answers nor ends: {}", self.told)
                }
            }
        }
    }

    /// Lets it go on for a time, or until it answers or has ended; says whether it may still be loading.
    pub(crate) fn goes_on_for(&mut self, time: Duration) -> bool {
        let end = Instant::now() + time;
        loop {
            match self.line(end.saturating_duration_since(Instant::now())) {
                Ok(Some(line)) if line.starts_with("listening on") => return false,
                Ok(Some(_)) => {}
                Ok(None) => return false,
                Err(_) => return true,
            }
        }
    }

    /// Ends it without a chance to clean up.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Returns its next line, or nothing if there will be none.
    fn line(&mut self, limit: Duration) -> Result<Option<String>, RecvTimeoutError> {
        match self.lines.recv_timeout(limit) {
            Ok(line) => {
                self.told.push_str(&line);
                Ok(Some(line))
            }
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(timeout) => Err(timeout),
        }
    }

    fn finished(mut self) -> Finished {
        let code = self.child.wait().unwrap().code();
        Finished { stdout: String::new(), stderr: std::mem::take(&mut self.told), code }
    }
}

impl Server {
    pub(crate) fn pid(&self) -> u32 {
        self.starting.pid()
    }

    /// Returns what it said before it answered.
    pub(crate) fn told(&self) -> &str {
        &self.starting.told
    }

    /// Ends it without a chance to clean up.
    pub(crate) fn kill(mut self) {
        self.starting.kill();
    }

    /// Sends a document and returns the status and the document that came back.
    pub(crate) fn post(&self, path: &str, document: &Value) -> (u16, Value) {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(PATIENCE))
            .http_status_as_error(false)
            .proxy(None)
            .build();
        let request = config.new_agent().post(format!("http://{}{path}", self.address));
        let request = request.header("content-type", "application/json");
        let mut response = request.send(document.to_string()).unwrap();
        let body = response.body_mut().read_to_string().unwrap();
        (response.status().as_u16(), serde_json::from_str(&body).unwrap())
    }

    /// Loads or unloads a model, which must work.
    #[track_caller]
    pub(crate) fn manage(&self, action: &str, model: &str) {
        let answer = self.post(&format!("/models/{action}"), &serde_json::json!({"model": model}));
        assert_eq!(answer.0, 200, "{action} {model}: {}", answer.1);
    }

    /// Lets a model write a few words, which must work.
    #[track_caller]
    pub(crate) fn ask(&self, model: &str) {
        let question =
            serde_json::json!({"model": model, "prompt": "Once upon a time", "max_tokens": 4});
        let (status, answer) = self.post("/v1/completions", &question);
        assert_eq!(status, 200, "{model}: {answer}");
        assert_ne!(answer["choices"][0]["text"], Value::from(""), "{answer}");
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
