//! `toko serve`: models behind HTTP until a signal says stop.
//!
//! The first SIGINT or SIGTERM lets running answers end, the second ends the process.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use anyhow::Context as _;
use tokio::{
    net::{TcpListener, lookup_host},
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
};
use toko_engine::{Engine, Error as EngineError, Options, Plan};
use toko_server::{Access, ApiKey, Defaults, Limits, LoadError, ServedModel, State};

use crate::{
    access,
    args::ServeArgs,
    commands::run::{door, engine_options},
    config,
    failure::Failure,
    model_source::{ModelSource, model_and_text},
    output::note,
    session::{Door, load_alone, load_engine},
    size::KeepAlive,
};

/// Serves until it is told to stop.
pub(crate) fn serve(args: &ServeArgs) -> anyhow::Result<()> {
    let sources = served_models(args)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let door = door("serve", &args.load);
    let ended = runtime.block_on(listen_and_answer(args, &sources, &door));
    door.steward.end();
    // A load or an answer that is given up must not hold the process.
    runtime.shutdown_background();
    ended
}

/// Returns the models to serve, at least one, each with a name of its own.
fn served_models(args: &ServeArgs) -> Result<Vec<ModelSource>, Failure> {
    let sources: Vec<ModelSource> = match args.positional.as_slice() {
        [] => vec![model_and_text(None, None, &args.model)?.0],
        _ if args.model.is_typed => {
            return Err(Failure::Usage(
                "the model is given twice: leave out --model or the arguments".to_owned(),
            ));
        }
        words => words.iter().map(|word| ModelSource::named(word)).collect(),
    };
    for (index, source) in sources.iter().enumerate() {
        let name = source.short_name();
        if sources[..index].iter().any(|earlier| earlier.short_name() == name) {
            return Err(Failure::Usage(format!("two of the models are called {name}")));
        }
    }
    Ok(sources)
}

async fn listen_and_answer(
    args: &ServeArgs,
    sources: &[ModelSource],
    door: &Door,
) -> anyhow::Result<()> {
    let mut signals = Signals::listen()?;
    let keys = access::keys(&args.access)?;
    let listener = bind(args, !keys.is_empty()).await?;
    let address = listener.local_addr()?;
    let first = tokio::select! {
        engine = load(args, &sources[0], door) => engine?,
        failure = signals.next() => return Err(failure.into()),
    };
    let info = first.info();
    note(&format!(
        "serving {} as {}, {} tokens of context, {} at once, {} threads, {}",
        info.name,
        sources[0].short_name(),
        info.context_tokens,
        info.replicas,
        info.threads,
        info.tier
    ));
    note(&format!("listening on http://{address}"));
    let state = state(args, sources, first, keys, door);
    let (stop, stopped) = oneshot::channel::<()>();
    let shutdown = async move { drop(stopped.await) };
    let mut server = std::pin::pin!(toko_server::serve(listener, state, shutdown));
    tokio::select! {
        ended = &mut server => return ended.context("the server ended"),
        _ = signals.next() => drop(stop),
    }
    note("stopping when the running answers have ended; press Ctrl-C again to stop now");
    tokio::select! {
        ended = &mut server => ended.context("the server ended"),
        failure = signals.next() => Err(failure.into()),
    }
}

async fn bind(args: &ServeArgs, has_keys: bool) -> anyhow::Result<TcpListener> {
    let (host, port) = host_and_port(&args.host, args.port)?;
    let addresses: Vec<SocketAddr> = lookup_host((host.as_str(), port))
        .await
        .with_context(|| format!("cannot find the address of {host}"))?
        .collect();
    let is_guarded = has_keys || args.access.insecure;
    if !is_guarded && !addresses.iter().all(|address| address.ip().is_loopback()) {
        return Err(Failure::Usage(format!(
            "{host} can be reached from other machines and there are no API keys: anybody there \
             could use the model; give --api-key-file, or --insecure if that is wanted, or listen on {}",
            config::HOST
        ))
        .into());
    }
    TcpListener::bind(addresses.as_slice())
        .await
        .with_context(|| format!("cannot listen on {host} port {port}; --port takes another one"))
}

/// Reads a host, host:port or URL; a port on its own wins over the one in the text.
pub(crate) fn host_and_port(text: &str, port: Option<u16>) -> Result<(String, u16), Failure> {
    let wrong = || {
        Failure::Usage(format!(
            "{text:?} is no address; give a host, host:port or http://host:port"
        ))
    };
    let address = text.strip_prefix("http://").unwrap_or(text);
    let address = address.strip_suffix('/').unwrap_or(address);
    // A bare IPv6 address has colons that lead to no port.
    let is_bare = address.parse::<std::net::Ipv6Addr>().is_ok();
    let (host, own_port) = match address.rsplit_once(':') {
        Some((host, digits)) if !is_bare && !address.ends_with(']') => {
            (host, Some(digits.parse().map_err(|_| wrong())?))
        }
        _ => (address, None),
    };
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if host.is_empty() || host.contains(['/', '[', ']', '@', ' ']) {
        return Err(wrong());
    }
    Ok((host.to_owned(), port.or(own_port).unwrap_or(config::PORT)))
}

async fn load(args: &ServeArgs, source: &ModelSource, door: &Door) -> anyhow::Result<Engine> {
    let (source, options, door) = (source.clone(), served_options(args), door.clone());
    tokio::task::spawn_blocking(move || load_alone(&source, &options, &door)).await?
}

fn served_options(args: &ServeArgs) -> Options {
    Options {
        queue_limit: args.limits.queue_limit,
        queue_timeout: Duration::from_secs(args.limits.queue_timeout.into()),
        prefix_cache_tokens: args.limits.prefix_cache_tokens,
        ..engine_options(&args.load, args.limits.replicas)
    }
}

/// Says how a model is loaded, and how it is the first time if it is there already.
fn served(
    args: &ServeArgs,
    source: &ModelSource,
    loaded: Option<Engine>,
    door: &Door,
) -> ServedModel {
    let (options, from, loaded) = (served_options(args), source.clone(), Mutex::new(loaded));
    let (steward, from_too, options_too) =
        (Arc::clone(&door.steward), source.clone(), options.clone());
    let door = door.clone();
    ServedModel {
        id: source.short_name(),
        aliases: Vec::new(),
        created: SystemTime::now(),
        defaults: Defaults { sampling: config::sampling(source), max_tokens: None },
        keep_alive: args.keep_alive.and_then(|KeepAlive(time)| time),
        is_pinned: args.pin,
        load: Box::new(move |idle| {
            let loaded = loaded.lock().unwrap_or_else(PoisonError::into_inner).take();
            let engine = loaded.map_or_else(|| load_engine(&from, &options, &door, idle), Ok);
            Ok(Arc::new(engine.map_err(|error| load_error(&error))?))
        }),
        explain: Box::new(move |proposal, idle| {
            let options = Options {
                context_tokens: proposal.context_tokens.or(options_too.context_tokens),
                replicas: proposal.replicas.or(options_too.replicas),
                ..options_too.clone()
            };
            let file = from_too.open()?;
            let plan = Plan::new(&file, &options, &from_too.short_name())?;
            let plan = plan.corrected(steward.admission());
            Ok(steward.explain(plan.load(), idle))
        }),
    }
}

/// Tells a refusal from every other reason, of which the whole chain is kept as the command line would tell it.
fn load_error(error: &anyhow::Error) -> LoadError {
    match error.downcast_ref() {
        Some(EngineError::Refused(decision)) => LoadError::Refused(decision.clone()),
        _ => LoadError::Failed(format!("{error:#}").into()),
    }
}

fn state(
    args: &ServeArgs,
    sources: &[ModelSource],
    first: Engine,
    keys: Vec<ApiKey>,
    door: &Door,
) -> State {
    let mut first = Some(first);
    let mut models: Vec<ServedModel> =
        sources.iter().map(|source| served(args, source, first.take(), door)).collect();
    models[0].aliases.clone_from(&args.alias);
    State {
        models,
        limits: Limits {
            body_bytes: config::BODY_LIMIT_BYTES,
            ping_every: config::PING_EVERY,
            client_silence: config::CLIENT_SILENCE,
            drain: Duration::from_secs(args.limits.drain_timeout.into()),
            cut_grace: config::CUT_GRACE,
        },
        access: Access { origins: args.access.cors_origins.clone(), hosts: Vec::new(), keys },
        steward: Arc::clone(&door.steward),
    }
}

/// The signals that mean stop.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn listen() -> anyhow::Result<Self> {
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(Self { interrupt, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for the next one and returns how the process ends when it ends by it.
    async fn next(&mut self) -> Failure {
        tokio::select! {
            _ = self.interrupt.recv() => Failure::Interrupted,
            _ = self.terminate.recv() => Failure::Terminated,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::host_and_port;

    fn check(text: &str, port: Option<u16>, host: &str, expected: u16) {
        let (found, found_port) = host_and_port(text, port).unwrap();
        assert_eq!((found.as_str(), found_port), (host, expected), "{text}");
    }

    #[test]
    fn a_host_may_carry_its_port_and_a_scheme() {
        check("127.0.0.1", None, "127.0.0.1", 11435);
        check("localhost:80", None, "localhost", 80);
        check("http://localhost:80/", None, "localhost", 80);
        check("http://localhost", None, "localhost", 11435);
    }

    #[test]
    fn a_port_on_its_own_wins() {
        check("localhost:80", Some(0), "localhost", 0);
        check("localhost", Some(81), "localhost", 81);
    }

    #[test]
    fn colons_of_an_ipv6_address_are_no_port() {
        check("::1", None, "::1", 11435);
        check("[::1]", None, "::1", 11435);
        check("[::1]:80", None, "::1", 80);
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in ["", "localhost:", "localhost:70000", "http://a/b", "https://a", "a b", "u@h"] {
            let error = host_and_port(text, None).unwrap_err().to_string();
            assert!(error.contains("is no address"), "{text}: {error}");
        }
    }
}
