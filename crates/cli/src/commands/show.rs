//! `toko show`: what is in a model file, for people or as one JSON document.
//!
//! A file that is sound but cannot be run here is shown with the reason; one that contradicts
//! itself is shown as far as it goes and then refused.

mod report;

use report::{Report, Rope, Vocabulary};
use toko_admission::handles::Admission;
use toko_engine::{Applicant, Engine, Error as EngineError, KvType, Options};
use toko_gguf::Gguf;
use toko_model::Error as ModelError;
use toko_tokenizer::Error as TokenizerError;

use crate::{
    args::ShowArgs,
    model_source::ModelSource,
    output::{Output, print_json},
};

/// Template lines shown unless all are asked for.
const TEMPLATE_LINES: usize = 6;
/// Characters of such a line.
const TEMPLATE_LINE_CHARS: usize = 90;

/// Shows a model file.
pub(crate) fn show(args: &ShowArgs, output: Output) -> anyhow::Result<()> {
    let source = ModelSource::named(args.model.as_os_str());
    let file = source.open()?;
    if args.template {
        return match file.metadata().optional_str("tokenizer.chat_template")? {
            Some(template) => Ok(output.line(template)?),
            None => Err(anyhow::anyhow!("{source} has no chat template")),
        };
    }
    let problem = try_to_load(&file).err();
    let reason = problem.as_ref().map(ToString::to_string);
    let report = Report::new(source.to_string(), &file, reason);
    if args.json {
        print_json(&report)?;
    } else {
        print(&report, output)?;
    }
    match problem {
        Some(error) if !is_only_unsupported(&error) => {
            Err(anyhow::Error::new(error).context(format!("{source} cannot be run")))
        }
        _ => Ok(()),
    }
}

/// Loads the model with the least that it takes: nothing else tells as surely whether it runs.
fn try_to_load(file: &Gguf) -> Result<(), EngineError> {
    if file.tensors().is_empty() {
        return toko_engine::tokenizer(file).map(drop);
    }
    let options = Options {
        context_tokens: Some(1),
        threads: Some(1),
        tier: None,
        kv_type: KvType::F16,
        replicas: Some(1),
        seed: 0,
        queue_limit: 0,
        queue_timeout: std::time::Duration::ZERO,
        prefix_cache_tokens: Some(0),
    };
    Engine::load(file, &options, &Applicant::new(&Admission::unlimited(), "test")).map(drop)
}

/// Tells a sound file that asks for more than this program can from one that is damaged.
fn is_only_unsupported(error: &EngineError) -> bool {
    matches!(
        error,
        EngineError::Model(ModelError::Architecture { .. } | ModelError::TensorType { .. })
            | EngineError::Tokenizer(
                TokenizerError::UnsupportedKind { .. } | TokenizerError::UnknownPreTokenizer { .. }
            )
    )
}

fn print(report: &Report, output: Output) -> anyhow::Result<()> {
    let row = |name: &str, value: &str| output.line(&format!("  {name:<20} {value}"));
    let runs_here = match &report.problem {
        None if report.tensors == 0 => "no: it has a vocabulary but no weights".to_owned(),
        None => "yes".to_owned(),
        Some(problem) => format!("no: {problem}"),
    };
    output.heading(&report.model)?;
    row("name", &or_dash(report.name.as_ref()))?;
    row("architecture", &or_dash(report.architecture.as_ref()))?;
    row("parameters", &counted(report.parameters))?;
    row("file format", &format!("GGUF version {}", report.gguf_version))?;
    row("runs here", &runs_here)?;

    output.heading("Geometry")?;
    let geometry = &report.geometry;
    for (name, value) in [
        ("context length", geometry.context_length),
        ("layers", geometry.block_count),
        ("embedding length", geometry.embedding_length),
        ("feed-forward length", geometry.feed_forward_length),
        ("heads", geometry.head_count),
        ("key-value heads", geometry.head_count_kv),
        ("key length", geometry.key_length),
        ("value length", geometry.value_length),
    ] {
        row(name, &or_dash(value.as_ref()))?;
    }
    row("rotary embedding", &rope_line(&report.rope))?;
    match &report.kv_bytes_per_token {
        Some(bytes) => {
            let blocks = bytes.q8_0.map(|bytes| format!(", {bytes} bytes as q8_0"));
            let floats = format!("{} bytes as f16, {} bytes as f32", bytes.f16, bytes.f32);
            row("KV cache per token", &format!("{floats}{}", blocks.unwrap_or_default()))?;
        }
        None => row("KV cache per token", "-")?,
    }
    print_tensors(report, output)?;
    match &report.tokenizer {
        Some(tokenizer) => print_tokenizer(tokenizer, output)?,
        None => output.heading("Tokenizer: none")?,
    }
    print_template(report.chat_template.as_deref(), output)
}

fn print_tensors(report: &Report, output: Output) -> anyhow::Result<()> {
    output.heading("Tensors")?;
    let table = |name: &str, tensors: &str, weights: &str, bytes: &str| {
        output.line(&format!("  {name:<16} {tensors:>8} {weights:>16} {bytes:>16}"))
    };
    table("type", "tensors", "weights", "bytes")?;
    for count in &report.tensor_types {
        table(
            &format!("{} ({})", count.name, count.id),
            &count.tensors.to_string(),
            &count.elements.to_string(),
            &count.bytes.to_string(),
        )?;
    }
    table(
        "all",
        &report.tensors.to_string(),
        &report.parameters.to_string(),
        &report.tensor_bytes.to_string(),
    )?;
    if let Some(choice) = &report.q2_layout {
        let layout = choice.layout.unwrap_or("cannot be told");
        output.line(&format!("  type 42 layout: {layout}; {}", choice.why))?;
    }
    Ok(())
}

fn print_tokenizer(tokenizer: &Vocabulary, output: Output) -> anyhow::Result<()> {
    let row = |name: &str, value: &str| output.line(&format!("  {name:<20} {value}"));
    output.heading("Tokenizer")?;
    let pre = tokenizer.pre.as_ref().map(|pre| format!(", pre-tokenizer {pre}"));
    row("kind", &format!("{}{}", tokenizer.model, pre.unwrap_or_default()))?;
    row("tokens", &tokenizer.tokens.to_string())?;
    row("merges", &tokenizer.merges.to_string())?;
    row("adds BOS", tokenizer.add_bos.map_or("not said", |adds| if adds { "yes" } else { "no" }))?;
    for token in &tokenizer.special {
        row(token.role, &format!("{} {}", token.id, or_dash(token.text.as_ref())))?;
    }
    Ok(())
}

fn print_template(template: Option<&str>, output: Output) -> anyhow::Result<()> {
    let Some(template) = template else { return Ok(output.heading("Chat template: none")?) };
    output.heading("Chat template")?;
    for line in template.lines().take(TEMPLATE_LINES) {
        let shown: String = line.chars().take(TEMPLATE_LINE_CHARS).collect();
        let more = if shown.len() < line.len() { "…" } else { "" };
        output.line(&format!("  {shown}{more}"))?;
    }
    let rest = template.lines().count().saturating_sub(TEMPLATE_LINES);
    if rest > 0 {
        output.line(&format!("  … {rest} more lines; --template prints all"))?;
    }
    Ok(())
}

fn rope_line(rope: &Rope) -> String {
    let mut parts = vec![format!("base {}", or_dash(rope.freq_base.as_ref()))];
    parts.extend(rope.dimension_count.map(|count| format!("{count} dimensions")));
    parts.extend(rope.scaling.as_ref().map(|kind| {
        let factor = rope.scaling_factor.map(|factor| format!(" by {factor}"));
        let origin = rope.original_context_length.map(|tokens| format!(" over {tokens} tokens"));
        format!("{kind} scaling{}{}", factor.unwrap_or_default(), origin.unwrap_or_default())
    }));
    parts.join(", ")
}

fn or_dash(value: Option<&impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), ToString::to_string)
}

/// Writes a count as people say it: 10.2 million.
fn counted(count: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
    let approximate = count as f64;
    match count {
        1_000_000_000.. => format!("{:.1} billion", approximate / 1e9),
        1_000_000.. => format!("{:.1} million", approximate / 1e6),
        _ => count.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::{counted, or_dash};

    #[test]
    fn counts_are_written_as_people_say_them() {
        assert_eq!(counted(999_999), "999999");
        assert_eq!(counted(10_232_832), "10.2 million");
        assert_eq!(counted(1_720_000_000), "1.7 billion");
    }

    #[test]
    fn what_is_not_there_is_a_dash() {
        assert_eq!(or_dash(None::<&u64>), "-");
        assert_eq!(or_dash(Some(&5)), "5");
    }
}
