//! `toko run`: one prompt, one answer on standard output. Without a prompt it hands over to `chat`.

use std::{sync::Arc, time::SystemTime};

use toko_engine::{Chat, FinishReason, Message, Options, Params, Prompt, Sampling, Summary};

use crate::{
    args::{GenerationArgs, LoadArgs, RunArgs},
    commands::{chat, stdin},
    config,
    failure::Failure,
    memory,
    model_source::model_and_text,
    output::{Output, note},
    session::{Door, Ending, Session},
};

/// Answers the prompt, or chats when there is none and a person is there.
pub(crate) fn run(mut args: RunArgs, output: Output) -> anyhow::Result<()> {
    let (source, argument) =
        model_and_text(args.first.as_ref(), args.second.as_ref(), &args.model)?;
    let piped = if stdin::is_terminal() { None } else { Some(stdin::read_text()?) };
    let piped = piped.as_deref().map(without_last_line_break);
    let prompt = match (argument, piped.filter(|text| !text.trim().is_empty())) {
        (Some(argument), Some(piped)) => Some(format!("{argument}\n\n{piped}")),
        (argument, piped) => argument.or_else(|| piped.map(str::to_owned)),
    };
    args.generation.temperature.get_or_insert(config::sampling(&source).temperature);
    let options = engine_options(&args.load, Some(1));
    let prompt = prompt.filter(|prompt| !prompt.is_empty());
    if prompt.is_none() {
        if args.raw {
            return Err(no_prompt("--raw needs a prompt"));
        }
        if !(stdin::is_terminal() && output.is_terminal()) {
            return Err(no_prompt("there is no prompt and no terminal to chat on"));
        }
    }
    let door = door("run", &args.load);
    let steward = Arc::clone(&door.steward);
    let ended = Session::load(&source, options, door).and_then(|session| match prompt {
        Some(prompt) => answer(session, &prompt, &args, output),
        None => chat::chat(session, &args, output),
    });
    steward.end();
    ended
}

/// Opens the door to memory for a command that loads models.
pub(crate) fn door(command: &str, load: &LoadArgs) -> Door {
    Door { steward: memory::join(command, load.memory.limit), is_forced: load.force }
}

/// Turns loading flags into the engine's options.
pub(crate) fn engine_options(load: &LoadArgs, replicas: Option<usize>) -> Options {
    Options {
        context_tokens: load.ctx,
        threads: load.compute.threads,
        tier: load.compute.kernel.tier,
        kv_type: load.compute.kv_type.into(),
        replicas,
        // Whoever asks in the foreground asks one thing after the other.
        queue_limit: usize::MAX,
        queue_timeout: std::time::Duration::MAX,
        seed: config::fresh_seed(),
        // A chat's every question repeats the conversation before it.
        prefix_cache_tokens: None,
    }
}

/// Turns generation settings into one request's parameters.
pub(crate) fn request_params(generation: &GenerationArgs, seed: u64) -> Params {
    Params {
        sampling: Sampling {
            temperature: generation.temperature.unwrap_or(config::TEMPERATURE),
            top_k: generation.top_k,
            top_p: generation.top_p,
            min_p: generation.min_p,
            repeat_penalty: generation.repeat_penalty,
            frequency_penalty: generation.frequency_penalty,
            presence_penalty: generation.presence_penalty,
            penalty_window_tokens: config::PENALTY_WINDOW_TOKENS,
            seed: Some(seed),
        },
        max_tokens: generation.max_tokens,
        stop: generation.stop.clone(),
        constraint: None,
        logit_bias: Vec::new(),
        logprobs: None,
        prompt_logprobs: None,
    }
}

/// Tells the timings of one answer.
pub(crate) fn note_timings(summary: &Summary, seed: u64) {
    let (prefill, decode) = (summary.prefill.as_secs_f64(), summary.decode.as_secs_f64());
    // The first token comes out of the prefill.
    let decoded = summary.completion_tokens.saturating_sub(1);
    note(&rate_line("prefill", summary.prompt_tokens - summary.cached_tokens, prefill));
    note(&rate_line("decode", decoded, decode));
    let reason = match summary.reason {
        FinishReason::Stop => "the answer was complete",
        FinishReason::Length => "the token limit or the context was reached",
    };
    note(&format!("answer   {} tokens, {reason}", summary.completion_tokens));
    note(&format!("seed     {seed}"));
}

fn rate_line(name: &str, tokens: usize, seconds: f64) -> String {
    let milliseconds = seconds * 1e3;
    if tokens == 0 || seconds <= 0.0 {
        return format!("{name:<8} {tokens} tokens, {milliseconds:.1} ms");
    }
    #[expect(clippy::cast_precision_loss, reason = "token counts are far below 2^52")]
    let rate = tokens as f64 / seconds;
    format!("{name:<8} {tokens} tokens, {milliseconds:.1} ms, {rate:.1} tok/s")
}

fn without_last_line_break(text: &str) -> &str {
    let text = text.strip_suffix('\n').unwrap_or(text);
    text.strip_suffix('\r').unwrap_or(text)
}

fn no_prompt(reason: &str) -> anyhow::Error {
    Failure::Usage(format!("{reason}; give one, as in: toko run \"Tell me a story\"")).into()
}

fn answer(
    mut session: Session,
    prompt: &str,
    args: &RunArgs,
    output: Output,
) -> anyhow::Result<()> {
    let seed = args.generation.seed.unwrap_or_else(config::fresh_seed);
    let prompt = engine_prompt(&session, prompt, args)?;
    let mut ends_with_newline = false;
    let ending = session.ask(prompt, request_params(&args.generation, seed), |text| {
        ends_with_newline = text.ends_with('\n');
        output.answer(text)
    })?;
    match ending {
        Ending::Interrupted => Err(Failure::Interrupted.into()),
        Ending::Finished(summary) => {
            if !ends_with_newline {
                output.answer("\n")?;
            }
            if args.verbose {
                let (milliseconds, info) =
                    (session.load_time.as_secs_f64() * 1e3, session.engine().info());
                let (threads, tier) = (info.threads, info.tier);
                note(&format!("load     {milliseconds:.1} ms, {threads} threads, {tier}"));
                note_timings(&summary, seed);
            }
            Ok(())
        }
    }
}

fn engine_prompt(session: &Session, prompt: &str, args: &RunArgs) -> anyhow::Result<Prompt> {
    let engine = session.engine();
    if args.raw {
        return Ok(engine.text_prompt(prompt));
    }
    let system = args.generation.system.iter().map(|text| Message::new("system", text));
    let messages = system.chain([Message::new("user", prompt)]).collect();
    Ok(engine.chat_prompt(&Chat::new(messages, SystemTime::now()))?)
}
