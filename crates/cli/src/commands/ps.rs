//! `toko ps`: what a running server has loaded and how busy it is, asked over HTTP.

use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::{
    args::PsArgs,
    commands::serve::host_and_port,
    failure::Failure,
    output::{Output, print_json},
};

/// A server on this machine answers in milliseconds, one elsewhere within this.
const PATIENCE: Duration = Duration::from_secs(10);

/// Prints one line for each model of the server.
pub(crate) fn ps(args: &PsArgs, output: Output) -> anyhow::Result<()> {
    let (host, port) = host_and_port(&args.host, args.port)?;
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    let queue = ask(&format!("http://{host}:{port}/admin/v1/queue"), args.api_key.as_deref())?;
    if args.json {
        return print_json(&queue);
    }
    let models = queue["models"].as_array().context("the server's answer has no models")?;
    output.line(&row(["MODEL", "STATE", "CONTEXT", "SIZE", "IDLE", "LEASED", "WAITING"]))?;
    for model in models {
        let text = |value: &Value| match value {
            Value::Null => "-".to_owned(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let replicas = &model["replicas"];
        let cells = [
            &model["id"],
            &model["state"],
            &model["context_tokens"],
            &replicas["size"],
            &replicas["idle"],
            &replicas["leased"],
            &model["waiting"],
        ];
        output.line(&row(cells.map(text)))?;
    }
    Ok(())
}

fn row<T: AsRef<str>>([id, state, numbers @ ..]: [T; 7]) -> String {
    let numbers = numbers.map(|number| format!("{:>8}", number.as_ref())).join(" ");
    format!("{:<32} {:<10} {numbers}", id.as_ref(), state.as_ref())
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
