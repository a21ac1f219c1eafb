//! `toko ps`: what the processes of this machine hold, and how busy a running server is.
//!
//! The first is read from the machine itself, the second asked over HTTP.

use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use toko_admission::{decision::Holder, steward::Memory, units::Bytes};

use crate::{
    args::PsArgs,
    commands::serve::host_and_port,
    config,
    failure::Failure,
    memory,
    output::{Output, note, print_json},
    refusal::seconds,
};

/// A server on this machine answers in milliseconds, one elsewhere within this.
const PATIENCE: Duration = Duration::from_secs(10);

/// Prints one line for each model of the server, one for each that a process of this machine holds, and the sum.
pub(crate) fn ps(args: &PsArgs, output: Output) -> anyhow::Result<()> {
    let mut server = Server::ask(args)?;
    let steward = memory::look_on("ps", args.memory.limit);
    let memory = steward.memory(&[]);
    if args.json {
        let mut document = server.take().map_or_else(|| json!({ "models": [] }), Server::document);
        document["holders"] = json!(memory.holders);
        document["memory"] = json!(memory);
        return print_json(&document);
    }
    if let Some(server) = &server {
        server.print(output)?;
        output.line("")?;
    }
    print_holders(&memory, output)?;
    print_sum(&memory, output)
}

/// What a server says.
struct Server {
    queue: Value,
    /// What it says of its models' memory; an older one says nothing.
    memory: Option<Value>,
}

impl Server {
    /// Asks; that there is none is fine unless one was named.
    fn ask(args: &PsArgs) -> anyhow::Result<Option<Self>> {
        let is_named = args.host.is_some() || args.port.is_some();
        let text = args.host.as_deref().unwrap_or(config::HOST);
        let (host, port) = host_and_port(text, args.port)?;
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        let base = format!("http://{host}:{port}/admin/v1");
        let key = args.api_key.as_deref();
        match ask(&format!("{base}/queue"), key) {
            Ok(queue) => {
                let memory = ask(&format!("{base}/memory"), key).ok();
                Ok(Some(Self { queue, memory }))
            }
            Err(error) if is_named => Err(error),
            Err(error) => {
                // Whoever is there without being asked for must not hide what the machine holds.
                if !matches!(error.downcast_ref(), Some(Failure::Unreachable { .. })) {
                    note(&format!("{error:#}"));
                }
                Ok(None)
            }
        }
    }

    /// Returns what it says as one document: its queue, and to each model what is known of its memory.
    fn document(self) -> Value {
        let Self { mut queue, memory } = self;
        let known = memory.as_ref().and_then(|memory| memory["models"].as_array());
        for model in queue["models"].as_array_mut().into_iter().flatten() {
            let same = |other: &&Value| other["id"] == model["id"];
            let Some(of) = known.and_then(|known| known.iter().find(same)) else { continue };
            for name in ["bytes", "idle_seconds", "keep_alive_seconds", "is_pinned"] {
                model[name] = of[name].clone();
            }
        }
        queue
    }

    fn print(&self, output: Output) -> anyhow::Result<()> {
        let document = Self { queue: self.queue.clone(), memory: self.memory.clone() }.document();
        let models = document["models"].as_array().context("the server's answer has no models")?;
        let head = ["CONTEXT", "SIZE", "IDLE", "LEASED", "WAITING", "MEMORY", "KEEP"];
        output.line(&model_row("MODEL", "STATE", &head.map(str::to_owned)))?;
        for model in models {
            let replicas = &model["replicas"];
            let counts = [
                &model["context_tokens"],
                &replicas["size"],
                &replicas["idle"],
                &replicas["leased"],
                &model["waiting"],
            ];
            let mut cells: Vec<String> = counts.into_iter().map(text).collect();
            cells.push(bytes(&model["bytes"]));
            cells.push(keep(model));
            output.line(&model_row(&text(&model["id"]), &text(&model["state"]), &cells))?;
        }
        Ok(())
    }
}

fn model_row(id: &str, state: &str, cells: &[String]) -> String {
    let cells: Vec<String> = cells.iter().map(|cell| format!("{cell:>9}")).collect();
    format!("{id:<32} {state:<10} {}", cells.join(" "))
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn bytes(value: &Value) -> String {
    let size = value.as_u64().map(Bytes::new);
    size.map_or_else(|| "-".to_owned(), |size| size.to_string())
}

/// Says how long an idle model stays.
fn keep(model: &Value) -> String {
    match (&model["is_pinned"], model["keep_alive_seconds"].as_u64()) {
        (Value::Bool(true), _) => "pinned".to_owned(),
        (Value::Bool(false), Some(time)) => seconds(time),
        (Value::Bool(false), None) => "on".to_owned(),
        _ => "-".to_owned(),
    }
}

fn print_holders(memory: &Memory, output: Output) -> anyhow::Result<()> {
    if memory.holders.is_empty() {
        return Ok(output.line("No process of this machine holds a model.")?);
    }
    let line = |cells: [&str; 5]| {
        let [process, model, bytes, state, idle] = cells;
        output.line(&format!("{process:<32} {model:<24} {bytes:>10} {state:<12} {idle}"))
    };
    line(["PROCESS", "MODEL", "MEMORY", "STATE", "UNUSED"])?;
    for Holder { process, model, bytes, state, idle_seconds, is_pinned } in &memory.holders {
        let idle = idle_seconds.map_or_else(|| "-".to_owned(), seconds);
        let idle = if *is_pinned { format!("{idle}, pinned") } else { idle };
        line([process, model, &bytes.to_string(), state, &idle])?;
    }
    Ok(())
}

fn print_sum(memory: &Memory, output: Output) -> anyhow::Result<()> {
    let available = memory
        .available_bytes
        .map_or_else(|| "an unknown size".to_owned(), |size| size.to_string());
    Ok(output.line(&format!(
        "{} of {} for models are taken ({}); {available} available ({}).",
        memory.charged_bytes, memory.ceiling_bytes, memory.ceiling_by, memory.bound_by
    ))?)
}

fn ask(url: &str, key: Option<&str>) -> anyhow::Result<Value> {
    let agent = ureq::Agent::config_builder()
        .timeout_global(Some(PATIENCE))
        .http_status_as_error(false)
        // The server is meant, not what the environment puts before the internet.
        .proxy(None)
        .build()
        .new_agent();
    let mut request = agent.get(url);
    if let Some(key) = key {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    let mut response = request
        .call()
        .map_err(|error| Failure::Unreachable { url: url.to_owned(), reason: error.to_string() })?;
    let body = response.body_mut().read_to_string().context("the server's answer broke off")?;
    let answer: Value =
        serde_json::from_str(&body).with_context(|| format!("{url} is no Tokonoma server"))?;
    if response.status() != 200 {
        let reason = answer["error"]["message"].as_str().unwrap_or("it gives no reason");
        bail!("the server refuses: {reason}");
    }
    Ok(answer)
}
