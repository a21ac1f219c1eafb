//! What was measured, for people and as one JSON document.

use std::{collections::BTreeMap, path::PathBuf};

use serde::Serialize;
use toko_admission::units::Bytes;
use toko_engine::ModelInfo;
use toko_gguf::Gguf;

use super::{llama_bench::LlamaBench, machine::Machine, measure::Run};
use crate::{model_source::ModelSource, output::Output};

/// All that was measured, and on what.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) version: &'static str,
    pub(super) machine: Machine,
    pub(super) model: Model,
    pub(super) tier: &'static str,
    pub(super) threads: usize,
    pub(super) kv_type: &'static str,
    pub(super) prompt_tokens: usize,
    pub(super) gen_tokens: usize,
    pub(super) depth_tokens: usize,
    pub(super) batch: usize,
    pub(super) repeats: usize,
    pub(super) load_ms: f64,
    /// None where no prompt was asked for.
    pub(super) prefill_tok_s: Option<Spread>,
    /// Of all sequences together; none where no generated token was asked for.
    pub(super) decode_tok_s: Option<Spread>,
    pub(super) peak_rss_bytes: u64,
    /// The weights of a token, and the keys and values of all sequences in the middle of the generated tokens.
    pub(super) decode_bytes_per_pass: Option<u64>,
    pub(super) streaming: Streaming,
    /// Of what the memory gives, what decoding takes at the median speed.
    pub(super) percent_of_streaming: Option<f64>,
    pub(super) compare: Option<Compared>,
}

/// What was measured.
#[derive(Debug, Serialize)]
pub(super) struct Model {
    pub(super) name: String,
    pub(super) file: String,
    /// The type of most bytes.
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) parameters: u64,
    pub(super) weight_bytes: u64,
}

/// How fast memory is read.
#[derive(Debug, Serialize)]
pub(super) struct Streaming {
    pub(super) bytes_per_second: f64,
    pub(super) buffer_bytes: usize,
}

/// The smallest, the middle and the largest of some figures.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Spread {
    pub(super) min: f64,
    pub(super) median: f64,
    pub(super) max: f64,
}

/// How another program did.
#[derive(Debug, Serialize)]
pub(super) struct Compared {
    program: PathBuf,
    prefill: Option<Ratio>,
    decode: Option<Ratio>,
}

/// How another program did in one phase.
#[derive(Debug, Serialize)]
struct Ratio {
    theirs_tok_s: Spread,
    /// Ours over theirs, in each pair of runs that came one after the other.
    ratio: Spread,
}

impl Model {
    /// Tells what a file holds.
    pub(super) fn new(source: &ModelSource, file: &Gguf, info: &ModelInfo) -> Self {
        let mut kinds = BTreeMap::<String, u64>::new();
        for tensor in file.tensors() {
            *kinds.entry(tensor.kind.to_string()).or_default() += tensor.bytes;
        }
        let largest = kinds.into_iter().max_by_key(|&(_, bytes)| bytes);
        Self {
            name: info.name.clone(),
            file: source.to_string(),
            kind: largest.map(|(kind, _)| kind).unwrap_or_default(),
            parameters: info.parameters,
            weight_bytes: info.weight_bytes,
        }
    }
}

impl Spread {
    /// Sorts figures; none where there are none.
    pub(super) fn of(figures: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = figures.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = match sorted.len() % 2 {
            0 if middle > 0 => f64::midpoint(sorted[middle - 1], sorted[middle]),
            _ => *sorted.get(middle)?,
        };
        Some(Self { min: *sorted.first()?, median, max: *sorted.last()? })
    }
}

impl Compared {
    /// Compares runs that came in turn.
    pub(super) fn new(program: &LlamaBench, ours: &[Run], theirs: &[Run]) -> Self {
        let ratio = |of: fn(&Run) -> Option<f64>| {
            let pairs = || ours.iter().zip(theirs);
            Some(Ratio {
                theirs_tok_s: Spread::of(theirs.iter().filter_map(of))?,
                ratio: Spread::of(pairs().filter_map(|(a, b)| Some(of(a)? / of(b)?)))?,
            })
        };
        Self {
            program: program.program().to_owned(),
            prefill: ratio(|run| run.prefill),
            decode: ratio(|run| run.decode),
        }
    }
}

impl Report {
    /// Prints it for people.
    pub(super) fn print(&self, output: Output) -> anyhow::Result<()> {
        let line = |name: &str, text: &str| output.line(&format!("{name:<18} {text}"));
        let Model { name, file, kind, weight_bytes, .. } = &self.model;
        output.heading(name)?;
        line("file", &format!("{file}, {kind}, {} of weights", Bytes::new(*weight_bytes)))?;
        let Machine { cpu, cores, features } = &self.machine;
        line("machine", &format!("{cpu}, {cores} cores, {}", features.join(" ")))?;
        line("kernels", &format!("{}, {} threads", self.tier, self.threads))?;
        line("load", &format!("{:.1} ms", self.load_ms))?;
        line("peak memory", &Bytes::new(self.peak_rss_bytes).to_string())?;
        let depth = match self.depth_tokens {
            0 => String::new(),
            depth => format!(" behind {depth}"),
        };
        output.line("")?;
        output.heading(&row("tokens per second", ["min", "median", "max"].map(str::to_owned)))?;
        let print = |name: &str, spread: Option<&Spread>, digits: usize| match spread {
            Some(Spread { min, median, max }) => {
                let figures = [min, median, max].map(|figure| format!("{figure:.digits$}"));
                output.line(&row(name, figures))
            }
            None => Ok(()),
        };
        let prefill = format!("prefill {}{depth}", self.prompt_tokens);
        print(&prefill, self.prefill_tok_s.as_ref(), 1)?;
        let together = match self.batch {
            1 => String::new(),
            batch => format!(" × {batch}"),
        };
        let decode = format!("decode {}{together}{depth}", self.gen_tokens);
        print(&decode, self.decode_tok_s.as_ref(), 1)?;
        if let Some(Compared { program, prefill: theirs_prefill, decode: theirs_decode }) =
            &self.compare
        {
            for (name, ratio) in [(&prefill, theirs_prefill), (&decode, theirs_decode)] {
                print(&format!("  theirs, {name}"), ratio.as_ref().map(|it| &it.theirs_tok_s), 1)?;
                print(&format!("  ratio, {name}"), ratio.as_ref().map(|it| &it.ratio), 2)?;
            }
            line("theirs", &program.display().to_string())?;
        }
        self.print_streaming(output)
    }

    fn print_streaming(&self, output: Output) -> anyhow::Result<()> {
        let Streaming { bytes_per_second, buffer_bytes } = &self.streaming;
        let (rate, buffer) = (bytes_per_second / 1e9, Bytes::new(*buffer_bytes as u64));
        let memory = format!("{rate:.1} GB/s read by {} threads over {buffer}", self.threads);
        output.line("")?;
        match (self.decode_bytes_per_pass, self.percent_of_streaming) {
            (Some(bytes), Some(percent)) => output.line(&format!(
                "Decoding reads {} a pass: {percent:.0} % of {memory}.",
                Bytes::new(bytes)
            ))?,
            _ => output.line(&format!("Memory gives {memory}."))?,
        }
        Ok(())
    }
}

fn row(name: &str, figures: [String; 3]) -> String {
    let [min, median, max] = figures;
    format!("{name:<36} {min:>10} {median:>10} {max:>10}")
}

#[cfg(test)]
mod tests {
    use super::Spread;

    fn check(figures: &[f64], [min, median, max]: [f64; 3]) {
        assert_eq!(Spread::of(figures.iter().copied()), Some(Spread { min, median, max }));
    }

    #[test]
    fn the_middle_of_an_even_number_of_figures_is_between_both_middle_ones() {
        check(&[4.0, 1.0, 3.0, 2.0], [1.0, 2.5, 4.0]);
        check(&[2.0, 1.0], [1.0, 1.5, 2.0]);
    }

    #[test]
    fn the_middle_of_an_odd_number_of_figures_is_one_of_them() {
        check(&[5.0, 1.0, 2.0], [1.0, 2.0, 5.0]);
        check(&[7.0], [7.0, 7.0, 7.0]);
    }

    #[test]
    fn nothing_was_measured_where_there_are_no_figures() {
        assert_eq!(Spread::of([]), None);
    }
}
